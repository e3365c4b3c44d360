"""Commands whose storage fails: a call on a path, or a request, once or for as long as it lasts.

A command ends with the status of its error, in one sentence. The same command, with the fault gone,
ends like one that never failed.
"""

import errno
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyla_lm.ending import DONE, MISTAKE, UNAVAILABLE
from hyla_lm.errors import FOR_A_PERSON
from tests import preloaded
from tests.faults.kills import MOST_ERROR_LINES
from tests.faults.runs import Command, differences
from tests.run_lines import measured

ROOT = Path(__file__).parents[2]
START = """
import ctypes, sys
from hyla_lm import ending, storage
from hyla_lm.cli import main as cli
from hyla_lm.run import follow

storage.RETRY_SECONDS, storage.GIVE_UP_SECONDS, follow.POLL_SECONDS = (0.01, 0.05), 0.4, 0.05
call, where, number, after, count, record = sys.argv[1:7]
del sys.argv[1:7]
numbers = map(int, (number, after, count))
assert ctypes.CDLL(None).inject(call.encode(), where.encode(), *numbers, record.encode()) >= 0
ending.process(cli.main)
"""
LONGEST_SECONDS = 120
MOST_AFTER = 3  # calls that go well first
ONCE, LASTING, FOR_EVER = 1, 4, -1  # a follower waits for a store, however long
PATH_ERRORS = ("EIO", "ESTALE", "EACCES", "ENOENT", "ENOMEM")
OPEN_ERRORS = (*PATH_ERRORS, "EMFILE", "ENFILE")
CHANGE_ERRORS = ("EIO", "ESTALE", "ENOSPC", "EDQUOT", "EROFS", "EACCES")
ERRORS = {
    "open": (*OPEN_ERRORS, "EROFS", "ENOSPC", "ETIMEDOUT"),
    "read": ("EIO", "ESTALE", "ENOMEM", "ETIMEDOUT", "EAGAIN"),
    "write": ("EIO", "ENOSPC", "EDQUOT", "ESTALE", "EFBIG"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "ESTALE"),
    "rename": CHANGE_ERRORS,
    "mkdir": CHANGE_ERRORS,
    "list": OPEN_ERRORS,
    "stat": PATH_ERRORS,
    "unlink": ("EIO", "ESTALE", "EROFS", "EACCES", "EBUSY"),
}
TRAIN, RESUME, EVALUATE, FOLLOW = COMMANDS = "train", "resume", "evaluate", "follow"


@dataclass(frozen=True)
class Fault:
    """Of the `call`s on paths that match `where`, those after `after` fail `count` times."""

    command: str
    call: str
    where: str
    error: str
    after: int = 0
    count: int = ONCE

    @property
    def statuses(self) -> tuple[int, ...]:
        """How the command may end: as if nothing were, or by what mends the error."""
        number = getattr(errno, self.error)
        return (DONE, MISTAKE if number in FOR_A_PERSON else UNAVAILABLE)


@dataclass
class Verdict:
    """What came of a fault; `faults` is empty if the command ended and went on as it must."""

    fault: Fault
    status: int | None = None
    said: str = ""
    faults: list[str] = field(default_factory=list)


class Disk:
    """Commands on a tiny run on a disk, and what they leave when nothing fails."""

    def __init__(self, command: Command, library: Path, home: Path, last_step: int):
        self._command, self._home, self._last = command, home, last_step
        self._library = library
        home.mkdir(parents=True)
        self.whole = home / "whole"
        assert self._run(TRAIN, self.whole)[0] == DONE
        self._followed = self._prepared(FOLLOW, "followed")
        assert self._run(FOLLOW, self._followed)[0] == DONE
        self._evaluation = self._run(EVALUATE, self.whole)[2]

    def calls(self, command: str) -> Counter[tuple[str, str]]:
        """The calls of a command on its run's files, by kind and pattern of paths."""
        workdir = self._prepared(command, f"recorded_{command}")
        record = self._home / f"{command}.calls"
        status, errors, _ = self._run(
            command, workdir, Fault(command, "", f"^{workdir}", "", 0, 0), record
        )
        assert status == DONE, errors
        calls = (line.split(" ", 1) for line in record.read_text().splitlines())
        return Counter((call, pattern(path.removeprefix(str(workdir)))) for call, path in calls)

    def verdict(self, fault: Fault, name: str) -> Verdict | None:
        """What comes of a fault; None where nothing met it."""
        workdir, record = self._prepared(fault.command, name), self._home / f"{name}.calls"
        verdict = Verdict(fault)
        try:
            status, errors, output = self._run(fault.command, workdir, fault, record)
        except subprocess.TimeoutExpired:
            verdict.faults.append(f"it did not end in {LONGEST_SECONDS} s")
            return verdict
        if "FAILED" not in record.read_text():
            return None
        verdict.status, verdict.said = status, errors
        verdict.faults += faults_of(fault, status, errors)
        status, errors, output = self._run(fault.command, workdir)
        if status != DONE:
            verdict.faults.append(f"it does not go on: status {status}: {errors[-1000:]}")
        else:
            verdict.faults += self._differences(fault.command, workdir, output)
        if not verdict.faults:
            shutil.rmtree(workdir)
        return verdict

    def _prepared(self, command: str, name: str) -> Path:
        """A folder as the command finds it."""
        workdir = self._home / name
        shutil.rmtree(workdir, ignore_errors=True)
        if command == TRAIN:
            return workdir
        shutil.copytree(self.whole, workdir)
        if command == RESUME:
            (workdir / "summary.json").unlink()
            shutil.rmtree(workdir / "checkpoints" / str(self._last))
        return workdir

    def _run(
        self, command: str, workdir: Path, fault: Fault | None = None, record: Path | None = None
    ) -> tuple[int, str, str]:
        """Status, stderr and stdout of a command."""
        of_train = [f"--gin_file={self._command.gin_file}"]
        given = {EVALUATE: ["evaluate"], FOLLOW: ["evaluate", "--follow"]}
        arguments = given.get(command, ["train", *of_train, *self._command.bindings])
        injected = ["", "^$", "0", "0", "0", os.devnull]
        if fault is not None:
            number = getattr(errno, fault.error, 0)
            where = fault.where.replace("WORKDIR", re.escape(str(workdir)))
            injected = [fault.call, where, f"{number}", f"{fault.after}", f"{fault.count}"]
            injected.append(str(record))
        done = preloaded.run(
            [sys.executable, "-c", START, *injected, *arguments, f"--workdir={workdir}"],
            env={**self._command.environment(True), "LD_PRELOAD": str(self._library)},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
        )
        return done.returncode, done.stderr, done.stdout

    def _differences(self, command: str, workdir: Path, output: str) -> list[str]:
        if command == EVALUATE:
            return [] if output == self._evaluation else ["what it printed"]
        if command == FOLLOW:
            here, there = (measured(folder / "evaluator") for folder in (workdir, self._followed))
            return [] if here == there else ["lines of the evaluator"]
        found = differences(workdir, self.whole, self._last)
        for path in (self.whole / "documents").iterdir():
            if (workdir / "documents" / path.name).read_bytes() != path.read_bytes():
                found.append(f"documents/{path.name}")
        return found


def faults_of(fault: Any, status: int, errors: str) -> list[str]:
    """What is wrong with how a command ended."""
    lines = errors.splitlines()
    sentences = [line for line in lines if line.startswith("hyla-lm: ")]
    found = []
    if status not in fault.statuses:
        found.append(f"status {status}")
    if "Traceback" in errors or len(lines) > MOST_ERROR_LINES:
        found.append("a traceback or many lines")
    if len(sentences) != (status != DONE):
        found.append(f"{len(sentences)} sentences")
    return [f"{what}: {errors[-2000:]}" for what in found]


def pattern(path: str) -> str:
    """A path of a run for a regular expression, with any numbers and names of moments."""
    path = re.sub(
        r"[.^$*+?()\[\]{}|\\]", lambda match: f"[{match[0]}]" if match[0] != "^" else ".", path
    )
    path = re.sub(r"[0-9a-f]{32}", "[0-9a-f]{32}", path)
    return re.sub(r"(?<![\[{\-f])\d+(?![\]}\-a])", "[0-9]+", path)


def drawn(rng: random.Random, calls: dict[str, Counter[tuple[str, str]]]) -> Fault:
    """A fault of a call that a command makes."""
    command = rng.choice(COMMANDS)
    call = rng.choice(sorted({call for call, _ in calls[command]} & ERRORS.keys()))
    where, count = rng.choice(sorted((w, n) for (c, w), n in calls[command].items() if c == call))
    lasting = LASTING if command == FOLLOW else FOR_EVER
    return Fault(
        command,
        call,
        f"^WORKDIR{where}$",
        rng.choice(ERRORS[call]),
        rng.randrange(min(count, MOST_AFTER)),
        rng.choice((ONCE, lasting)),
    )
