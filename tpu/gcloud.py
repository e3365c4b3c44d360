"""Runs gcloud with a time limit, or prints what it would run, and reads what a failure means."""

import json
import os
import re
import shlex
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
            r"not on PATH",
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
_MESSAGE = re.compile(r'"message": "((?:[^"\\]|\\.)*)"')
_CHATTER = ("#####", "SSH: ", "Using ssh batch size", "Retrying: ")


@dataclass(frozen=True)
class Done:
    """Status and output of a finished command."""

    code: int
    output: str = ""
    errors: str = ""


# Runs a command with the arguments of `run_for_real`, or only prints it.
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
    if message := _MESSAGE.search(errors):
        text = message[1].replace('\\"', '"')
    elif own := _OWN_ERROR.search(errors):
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
    group = None if stream else 0
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
            process_group=group,
        )
    except FileNotFoundError:
        return Done(NOT_STARTED, errors=f"{argv[0]} is not on PATH: install it")
    except OSError as error:
        return Done(NOT_STARTED, errors=f"{argv[0]} does not start: {error}")
    with process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            _end(process, group)
            return Done(TIMED_OUT, errors=f"no answer in {limit:.0f} s")
        except BaseException:
            _end(process, group)
            raise
    return Done(process.returncode, output or "", errors or "")


def _end(process: subprocess.Popen, group: int | None) -> None:
    if group is None:
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)


class DryRun:
    """Prints each command, a question once after a change, and answers as if all went well."""

    def __init__(self, exists: bool):
        self.exists, self.has_trained = exists, False
        self._asked: set[str] = set()

    def __call__(self, argv: Sequence[str], **_: object) -> Done:
        line, words = shlex.join(argv), argv[argv.index("tpus") + 1 :]
        if line not in self._asked:
            print(line)
        if words[:2] == ["queued-resources", "create"] or words[1] == "delete":
            self.exists = words[1] == "create"
            self._asked.clear()
        if words[1] == "ssh":
            answer = {"state": "exited", "code": 0} if self.has_trained else {}
            self.has_trained = self.has_trained or "worker start" in argv[-1]
            return Done(0, f"{json.dumps(answer)}\n")
        if words[1] != "describe":
            return Done(0)
        self._asked.add(line)
        if not self.exists:
            return Done(1, errors="NOT_FOUND")
        is_node = words[0] == "tpu-vm"
        return Done(0, json.dumps({"state": "READY" if is_node else {"state": "ACTIVE"}}))
