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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hyla_lm.ending import DONE, MISTAKE, UNAVAILABLE
from hyla_lm.errors import FOR_A_PERSON
from tests import preloaded
from tests.faults.kills import MOST_ERROR_LINES
from tests.faults.runs import LONGEST_SECONDS, Command, differences
from tests.run.buckets.fake_bucket import DROPPED, FakeBucket
from tests.run_lines import measured

ROOT = Path(__file__).parents[2]
START = """
import asyncio, ctypes, os, sys, time
from types import SimpleNamespace as Fake
from hyla_lm import ending, storage
from hyla_lm.cli import main as cli
from hyla_lm.run import follow

storage.RETRY_SECONDS, storage.GIVE_UP_SECONDS, follow.POLL_SECONDS = (0.01, 0.05), 0.4, 0.05
if "STORAGE_EMULATOR_HOST" in os.environ:  # clients that try again themselves do so at once
    from gcsfs import retry
    from google.api_core.retry import retry_base, retry_unary
    from orbax.checkpoint._src.serialization import tensorstore_utils as ts
    for context in (ts._BASE_TS_CONTEXT, ts._DEFAULT_OCDBT_TS_CONTEXT):
        delays = {"initial_delay": "1ms", "max_delay": "1ms"}
        context["gcs_request_retries"] = {"max_retries": 3, **delays}
    retry.asyncio = Fake(sleep=lambda _: asyncio.sleep(1e-3))
    fast = Fake(sleep=lambda _: None, monotonic=lambda: 300 * time.monotonic())
    retry_base.time = retry_unary.time = fast
call, where, number, after, count, record = sys.argv[1:7]
del sys.argv[1:7]
numbers = map(int, (number, after, count))
assert ctypes.CDLL(None).inject(call.encode(), where.encode(), *numbers, record.encode()) >= 0
ending.process(cli.main)
"""
MOST_AFTER = 3  # calls that go well first
ONCE, LASTING, FOR_EVER = 1, 4, -1  # a follower waits, however long
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
# Statuses of HTTP, and an answer that breaks off.
ERRORS_OF_STORES = ("503", "429", "500", "DROPPED", "403", "404")
FOR_A_PERSON_OF_STORES = ("403", "404")
NOTHING = ("none", "^$", "0", "0", "0", os.devnull)
TRAIN, RESUME, EVALUATE, FOLLOW = COMMANDS = "train", "resume", "evaluate", "follow"


@dataclass(frozen=True)
class Fault:
    """Of the calls of a kind that match `where`, those after `after` fail `count` times.

    The kind of call is a row of ERRORS, or the method of a request.
    """

    command: str
    call: str
    where: str
    error: str
    after: int = 0
    count: int = ONCE

    @property
    def statuses(self) -> tuple[int, ...]:
        """How the command may end: as if nothing were, or by what mends the error."""
        number = getattr(errno, self.error, None)
        if self.error not in FOR_A_PERSON_OF_STORES and number not in FOR_A_PERSON:
            return (DONE, UNAVAILABLE)
        # Orbax takes what it cannot look at for missing, and does not say why. One "not found" of a
        # bucket during a save is tried again: the next start asks whether the bucket exists.
        is_saving = self.command in (TRAIN, RESUME)
        is_unsure = self.call in ("list", "stat") or (self.error == "404" and is_saving)
        is_orbax = "/checkpoints/" in self.where
        return (DONE, MISTAKE, UNAVAILABLE) if is_unsure and is_orbax else (DONE, MISTAKE)


@dataclass
class Verdict:
    """What came of a fault; `faults` is empty if the command ended and went on as it must."""

    fault: Fault
    status: int | None = None
    said: str = ""
    faults: list[str] = field(default_factory=list)


class Disk:
    """Commands on a tiny run on a disk, what they leave when nothing fails, and their calls."""

    errors: Mapping[str, Sequence[str]] = ERRORS

    def __init__(self, command: Command, home: Path, last_step: int):
        self._command, self._home, self._last = command, home, last_step
        home.mkdir(parents=True)
        self.whole = home / "whole"
        status, errors, _ = self._run(TRAIN, self.whole)
        assert status == DONE, errors

    @cached_property
    def calls(self) -> dict[str, Counter[tuple[str, str]]]:
        """How often each command makes a call on files whose paths fit a pattern."""
        found = {}
        for name in COMMANDS:
            record = self._home / f"{name}.calls"
            status, errors, output = self._run(name, self._prepared(name, name), record=record)
            assert status == DONE, errors
            calls = (line.split(" ", 1) for line in record.read_text().splitlines())
            found[name] = Counter((call, pattern(where)) for call, where in calls)
            if name == EVALUATE:
                self._evaluation = output
        return found

    def drawn(self, rng: random.Random) -> Fault:
        """A fault of a call that a command makes."""
        command = rng.choice(COMMANDS)
        calls = self.calls[command]
        call = rng.choice(sorted({call for call, _ in calls} & self.errors.keys()))
        where, count = rng.choice(sorted((w, n) for (c, w), n in calls.items() if c == call))
        error = rng.choice(self.errors[call])
        lasting = LASTING if command == FOLLOW else FOR_EVER
        after, times = rng.randrange(min(count, MOST_AFTER)), rng.choice((ONCE, lasting))
        return Fault(command, call, f"^{where}$", error, after, times)

    def verdict(self, fault: Fault, name: str) -> Verdict | None:
        """What comes of a fault; None where nothing met it."""
        workdir, record = self._prepared(fault.command, name), self._home / f"{name}.calls"
        verdict = Verdict(fault)
        try:
            status, errors, output = self._run(fault.command, workdir, fault, record)
        except subprocess.TimeoutExpired:
            verdict.faults.append(f"it did not end in {LONGEST_SECONDS:g} s")
            return verdict
        if "FAILED" not in record.read_text():
            return None
        verdict.status, verdict.said = status, errors
        verdict.faults += faults_of(fault, status, errors)
        if (
            status != DONE or fault.command == FOLLOW
        ):  # which leaves out what is missing, and says so
            status, errors, output = self._run(fault.command, workdir)
        try:
            verdict.faults += self._differences(fault.command, workdir, output)
        except (ValueError, OSError) as error:  # no run that can be compared
            verdict.faults.append(f"status {status}, and {error}: {errors}"[:2000])
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
        """Status, stderr and stdout of a command; its calls are added to the record."""
        fault = fault or Fault(command, "", "", "")
        where = re.sub(r"^\^", f"^{workdir}", fault.where) or f"^{workdir}"
        number = getattr(errno, fault.error, 0)
        injected = [fault.call, where, f"{number}", f"{fault.after}", f"{fault.count}"]
        done = self._process(command, f"{workdir}", {}, *injected, f"{record or os.devnull}")
        if record is not None:
            record.write_text(record.read_text().replace(f"{workdir}", ""))
        return done

    def _process(
        self, command: str, workdir: str, environment: Mapping[str, str], *injected: str
    ) -> tuple[int, str, str]:
        of_train = ["train", f"--gin_file={self._command.gin_file}", *self._command.bindings]
        given = {EVALUATE: ["evaluate"], FOLLOW: ["evaluate", "--follow"]}.get(command, of_train)
        done = preloaded.run(
            [sys.executable, "-c", START, *injected, *given, f"--workdir={workdir}"],
            env={**self._command.environment(True), **environment},
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
            folders = (workdir / "evaluator", self._home / FOLLOW / "evaluator")
            here, there = ({line["step"]: line for line in measured(x)} for x in folders)
            return [] if here == there else ["lines of the evaluator"]
        found = differences(workdir, self.whole, self._last)
        for path in (self.whole / "documents").iterdir():
            if (workdir / "documents" / path.name).read_bytes() != path.read_bytes():
                found.append(f"documents/{path.name}")
        return found


class Store(Disk):
    """The same in a bucket of a stand-in, whose objects are put into a folder in between."""

    errors = dict.fromkeys(("GET", "POST", "PUT", "DELETE"), ERRORS_OF_STORES)

    def _run(
        self, command: str, workdir: Path, fault: Fault | None = None, record: Path | None = None
    ) -> tuple[int, str, str]:
        store = FailingBucket(fault)
        for path in workdir.rglob("*") if workdir.exists() else ():
            if path.is_file():
                store.objects[f"bucket/run/{path.relative_to(workdir)}"] = path.read_bytes()
        with store:
            done = self._process(command, "gs://bucket/run", store.environment, *NOTHING)
        for name, content in store.objects.items():
            path = workdir / name.removeprefix("bucket/run/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if record is not None:
            record.write_text("".join(f"{request}\n" for request in store.requests))
        return done


class FailingBucket(FakeBucket):
    """A stand-in in which some requests fail, which are marked as FAILED."""

    def __init__(self, fault: Fault | None):
        super().__init__()
        self.buckets_can_be_seen = True
        self._fault, self._seen = fault, 0

    def fault_of(self, request: str) -> int | None:
        fault, (call, where) = self._fault, request.split(" ", 1)
        self.requests.append(request)
        if fault is None or call != fault.call or not re.search(fault.where, where):
            return None
        self._seen += 1
        if self._seen <= fault.after or 0 <= fault.count <= self._seen - fault.after - 1:
            return None
        self.requests.append(f"FAILED {request}")
        return DROPPED if fault.error == "DROPPED" else int(fault.error)


def faults_of(fault: Any, status: int, errors: str) -> list[str]:
    """What is wrong with how a command ended."""
    lines = [line for line in errors.splitlines() if "trying again in" not in line]
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
    path = re.sub(r"([.$*+?()\[\]{}|\\])", r"[\1]", path).replace("[\\]", ".")
    path = re.sub(r"[0-9a-f]{32}", "<hex>", path)
    return re.sub(r"[0-9]+", "[0-9]+", path).replace("<hex>", "[0-9a-f]{32}")


def table(verdicts: Sequence[Verdict]) -> str:
    """Errors by command as Markdown, and how many ended with which status, all as they must."""
    rows = ["| command | errors | 0 | 2 | 69 | right |", f"|{' ---: |' * 6}"]
    for command in COMMANDS:
        own = [verdict for verdict in verdicts if verdict.fault.command == command]
        ends = Counter(verdict.status for verdict in own)
        counts = [len(own), *(ends[end] for end in (DONE, MISTAKE, UNAVAILABLE))]
        counts.append(sum(not verdict.faults for verdict in own))
        rows.append(f"| {command} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)
