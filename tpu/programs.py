"""Runs a program with a time limit."""

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hyla_lm.errors import UserError
from hyla_lm.tpu.verdicts import TIMED_OUT


@dataclass(frozen=True)
class Done:
    """Status and output of a finished command."""

    code: int
    output: str = ""
    errors: str = ""


class Runner(Protocol):
    """Runs commands, or only prints them."""

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stream: bool = False,
        stdin: str = "",
        limit: float | None = None,
    ) -> Done: ...


def run_for_real(
    argv: Sequence[str], *, stream: bool = False, stdin: str = "", limit: float | None = None
) -> Done:
    """Runs a command; with `stream` its output goes to the terminal instead of being kept.

    After `limit` seconds it is ended, with all that it started, and its status is TIMED_OUT.
    """
    kept = None if stream else subprocess.PIPE
    group = None if stream else 0
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=kept,
            stderr=kept,
            text=True,
            process_group=group,
        )
    except FileNotFoundError:
        raise UserError(f"{argv[0]} is not on PATH: install it, as tpu/README.md says.") from None
    with process:
        try:
            output, errors = process.communicate(stdin, timeout=limit)
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
