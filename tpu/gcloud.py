"""Runs gcloud with a time limit, and reads what a failure means."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from hyla_lm.errors import UserError

TIMED_OUT = 256  # no status of a program: `timeout` on a host ends with 124
NOT_STARTED = 127
LOST_CONNECTION = 255
LONGEST_DETAIL = 300


class Verdict(Enum):
    """What is done about a command that failed."""

    AGAIN = auto()  # waiting may mend it
    FINAL = auto()  # a person must act
    QUOTA = auto()  # final, but for a slice that was there before: quota comes back late
    MISSING = auto()
    UNREACHED = auto()  # a host gave no answer
    ON_HOST = auto()  # a command failed on a host


# These words stand beside those of FINAL where waiting helps all the same.
PASSING = re.compile(
    r"per minute|RATE_LIMIT|[Rr]etriable|[Tt]ry again|[Pp]lease retry|Max retries exceeded"
    r"|no more capacity"
)
# What waiting does not mend. gcloud's own words, which are passed on, say what does.
FINAL = re.compile(
    "|".join(
        (
            r"does not start",
            r"invalid_grant|[Rr]eauthentication|active account selected",
            r"BILLING_DISABLED|[Bb]illing .*(disabled|enabled|closed)",
            r"SERVICE_DISABLED|has not been used in project",
            r"CONSUMER_INVALID|[Pp]roject \S+ (was )?(not found|has been deleted|does not exist)",
            r"[Ll]ocation .*(not found|invalid|unsupported)|[Zz]one .*(not found|does not exist)",
            r"[Aa]ccelerator ?[Tt]ype .*(not (found|available|supported)|unsupported|invalid)",
            r"PERMISSION_DENIED|[Pp]ermission denied|\b403\b|Forbidden",
            r"ALREADY_EXISTS|already exists",
            r"INVALID_ARGUMENT|[Ii]nvalid choice|unrecognized arguments|Invalid value for",
        )
    )
)
_QUOTA = re.compile(r"[Qq]uota")
_MISSING = re.compile(r"NOT_FOUND|was not found")
_NO_CONNECTION = re.compile(r"return code \[255\]")
_OWN_ERROR = re.compile(r"ERROR: (\(gcloud[\w.-]*\) |(?=gcloud crashed))")
_CHATTER = ("#####", "SSH: ", "Using ssh batch size", "Retrying: ")


@dataclass(frozen=True)
class Done:
    """Status and output of a finished command."""

    code: int
    output: str = ""
    errors: str = ""


# Runs a command with the arguments of `run_for_real`.
Runner = Callable[..., Done]


class CloudError(UserError):
    """A command of gcloud failed, or its answer cannot be read."""

    def __init__(self, verdict: Verdict, sentence: str):
        super().__init__(sentence)
        self.verdict = verdict


def verdict_of(argv: Sequence[str], done: Done) -> Verdict:
    """What the failure of a command means.

    What a command says on a host is no word of gcloud's.
    """
    if "ssh" in argv:
        is_away = done.code in (LOST_CONNECTION, TIMED_OUT) or _NO_CONNECTION.search(done.errors)
        return Verdict.UNREACHED if is_away else Verdict.ON_HOST
    verdict = verdict_in(done.errors)
    # A request that names a network or an account that does not exist.
    is_reference = verdict is Verdict.MISSING and "create" in argv
    return Verdict.FINAL if is_reference else verdict


def verdict_in(errors: str) -> Verdict:
    """What words of Google's mean."""
    if PASSING.search(errors):
        return Verdict.AGAIN
    rows = ((FINAL, Verdict.FINAL), (_QUOTA, Verdict.QUOTA), (_MISSING, Verdict.MISSING))
    return next((verdict for words, verdict in rows if words.search(errors)), Verdict.AGAIN)


def detail_of(done: Done) -> str:
    """What gcloud says of an error, or the last line of what failed on a host."""
    errors = done.errors
    if own := _OWN_ERROR.search(errors):
        text = errors[own.end() :]
    else:
        lines = [line for line in errors.splitlines() if line.strip("# ")]
        words = [line for line in lines if not line.startswith(_CHATTER)]
        text = (words or lines or [f"it ended with status {done.code}"])[-1].strip("# ")
    return " ".join(text.split()).rstrip(".")[:LONGEST_DETAIL]


def run_for_real(argv: Sequence[str], *, stream: bool = False, limit: float | None = None) -> Done:
    """Runs a command; with `stream` its output goes to the terminal instead of being returned.

    After `limit` seconds it is ended, with all that it started, and its status is TIMED_OUT.
    """
    pipe = None if stream else subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            process_group=None if stream else 0,
        )
    except OSError as error:
        return Done(NOT_STARTED, errors=f"{argv[0]} does not start ({error}): install it")
    with process:
        try:
            output, errors = process.communicate(timeout=limit)
        except BaseException as error:
            # What is streamed is in this process's group, and is interrupted with it.
            if stream:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                return Done(TIMED_OUT, errors=f"no answer in {limit:.0f} s")
            raise
    return Done(process.returncode, output or "", errors or "")
