"""Trainers whose folder is in a bucket, and the files it must hold."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hyla_lm.run.summary import LEARNING_RATE
from tests import preloaded
from tests.faults.runs import differences
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run_lines import measured_in
from tests.tiny_runs import arguments

WORKDIR = "gs://bucket/run"
STEPS = 6
SMALL = """
TrainConfig.steps = 6
TrainConfig.eval_every = 3
LogConfig.every = 1
CheckpointConfig.every = 2
CheckpointConfig.keep = 2
"""


class Trainer:
    """A trainer that is sent a signal while the store is asked for something."""

    def __init__(self, store: FakeBucket, gin_file: Path, where: str, number: int):
        self._where, self._number, self._is_sent = where, number, False
        store.watcher = self._watch
        self._process = preloaded.Popen(**command(gin_file, store))

    def _watch(self, request: str) -> None:
        if not self._is_sent and self._where in request:
            self._is_sent = True
            self._process.send_signal(self._number)

    def ended(self) -> tuple[int, str]:
        errors = self._process.communicate(timeout=300)[1]
        assert self._is_sent, f"nothing asked for {self._where}\n{errors}"
        return self._process.returncode, errors


def command(gin_file: Path, store: FakeBucket, script: str = "", *bindings: str) -> dict[str, Any]:
    """What starts a trainer, or a script that becomes one."""
    start = ["-c", script] if script else ["-m", "hyla_lm"]
    return process(store, *start, *arguments(gin_file, WORKDIR, *bindings))


def process(store: FakeBucket, *args: str) -> dict[str, Any]:
    """What starts a process of Python whose gs:// is the store."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return {"args": [sys.executable, *args], "env": {**os.environ, **store.environment}, **output}


def train(gin_file: Path, store: FakeBucket, script: str = "", *bindings: str) -> SimpleNamespace:
    return preloaded.run(**command(gin_file, store, script, *bindings), timeout=600)


def wait_until(is_so: Callable[[], object]) -> None:
    """Returns when the function returns something true; what it raises is raised."""
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def whole_steps(store: FakeBucket) -> list[int]:
    last = "/commit_success.txt"
    names = [name.removeprefix("bucket/run/checkpoints/") for name in store.objects]
    return sorted(
        int(name.removesuffix(last)) for name in names if name.count("/") == 1 == name.count(last)
    )


def assert_equal(store: FakeBucket, whole: Path, home: Path) -> None:
    """The run in the store equals a whole one to the last bit, and so do losses of documents."""
    for name, content in store.objects.items():
        path = home / name.removeprefix("bucket/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert differences(home / "run", whole, STEPS) == []
    assert len(whole_steps(store)) == 2 and whole_steps(store)[-1] == STEPS
    for path in (whole / "documents").iterdir():
        assert store.objects[f"bucket/run/documents/{path.name}"] == path.read_bytes()


def assert_lines_until_the_newest_checkpoint(store: FakeBucket, whole: Path) -> int:
    """Lines up to the newest checkpoint, whose step is returned, are in the store.

    Its evaluation comes after it, and is done again by whoever resumes.
    """
    newest = max(whole_steps(store), default=0)
    there = measured_in(store.objects.get("bucket/run/metrics.jsonl", b""))
    expected = measured_in((whole / "metrics.jsonl").read_bytes())
    until = [
        [x for x in lines if x["step"] < newest or (x["step"] == newest and LEARNING_RATE in x)]
        for lines in (there, expected)
    ]
    assert until[0] == until[1]
    return newest
