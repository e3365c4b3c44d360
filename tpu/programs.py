"""Runs programs with a time limit, or prints them in a dry run."""

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hyla_lm.errors import UserError

TIMED_OUT = 256  # no status of a program: `timeout` on a host ends with 124


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
    """Runs a command; with `stream` its output goes to the terminal instead of being returned.

    After `limit` seconds it is ended, with all that it started, and its status is TIMED_OUT.
    """
    pipe = None if stream else subprocess.PIPE
    group = None if stream else 0
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=pipe,
            stderr=pipe,
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


class DryRun:
    """Prints each command and answers like a cloud without errors."""

    def __init__(self, exists: bool):
        self.exists, self.has_trained = exists, False

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stream: bool = False,
        stdin: str = "",
        limit: float | None = None,
    ) -> Done:
        print(shlex.join(argv))
        words = argv[argv.index("tpus") + 1 :]
        if words[:2] == ["queued-resources", "create"] or words[1] == "delete":
            self.exists = words[1] == "create"
        if words[1] == "ssh":
            answer = {"state": "exited", "code": 0} if self.has_trained else {}
            self.has_trained = self.has_trained or "worker start" in argv[-1]
            return Done(0, f"{json.dumps(answer)}\n")
        if words[1] != "describe":
            return Done(0)
        if not self.exists:
            return Done(1, errors="NOT_FOUND")
        is_node = words[0] == "tpu-vm"
        return Done(0, json.dumps({"state": "READY" if is_node else {"state": "ACTIVE"}}))
