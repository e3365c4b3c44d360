"""Trainers whose folder is in a bucket, and the files it must hold."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from hyla_lm.run.summary import LEARNING_RATE
from tests import preloaded
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run_lines import measured_in

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
    """A trainer that can be sent a signal while the store is asked for something."""

    def __init__(self, store: FakeBucket, gin_file: Path, where: str, number: int, count: int = 1):
        self.where, self.number, self.count = where, number, count
        store.watcher = self.watch
        self.process = preloaded.Popen(**command(gin_file, WORKDIR, store.environment))

    def watch(self, request: str) -> None:
        if self.count and self.where in request:
            self.count -= 1
            if not self.count:
                self.process.send_signal(self.number)

    def ended(self) -> tuple[int, str]:
        errors = self.process.communicate(timeout=300)[1]
        assert not self.count, f"nothing asked for {self.where}\n{errors}"
        return self.process.returncode, errors


def command(
    gin_file: Path, workdir: str, environment: dict[str, str], script: str = "", *bindings: str
) -> dict[str, Any]:
    """What starts a trainer."""
    start = ["-c", script] if script else ["-m", "hyla_lm"]
    return {
        "args": [
            *(sys.executable, *start),
            *("train", f"--gin_file={gin_file}", f"--workdir={workdir}"),
            *(f"--gin.{binding}" for binding in bindings),
        ],
        "env": {**os.environ, **environment},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def train(
    gin_file: Path, workdir: str, environment: dict[str, str], script: str = "", *bindings: str
) -> SimpleNamespace:
    process = preloaded.Popen(**command(gin_file, workdir, environment, script, *bindings))
    output, errors = process.communicate(timeout=600)
    return SimpleNamespace(returncode=process.returncode, stdout=output, stderr=errors)


def whole_steps(store: FakeBucket) -> list[int]:
    last = "/commit_success.txt"
    names = [name.removeprefix("bucket/run/checkpoints/") for name in store.objects]
    return sorted(
        int(name.removesuffix(last)) for name in names if name.count("/") == 1 == name.count(last)
    )


def final_arrays(checkpoints: Path) -> list[np.ndarray]:
    import jax

    restored = ocp.StandardCheckpointer().restore(checkpoints / str(STEPS) / "state")
    return [np.asarray(leaf) for leaf in jax.tree.leaves(restored)]


def download(store: FakeBucket, home: Path) -> Path:
    """The run's objects as files of a folder."""
    for name, content in store.objects.items():
        path = home / name.removeprefix("bucket/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return home / "run"


def assert_equal(store: FakeBucket, whole: Path, home: Path) -> None:
    """The run in the store has the lines and, byte for byte, the parameters of a whole one.

    So have the losses of documents.
    """
    metrics = store.objects["bucket/run/metrics.jsonl"]
    assert measured_in(metrics) == measured_in((whole / "metrics.jsonl").read_bytes())
    assert len(whole_steps(store)) == 2 and whole_steps(store)[-1] == STEPS
    for path in (whole / "documents").iterdir():
        assert store.objects[f"bucket/run/documents/{path.name}"] == path.read_bytes()
    found = final_arrays(download(store, home) / "checkpoints")
    for array, expected in zip(found, final_arrays(whole / "checkpoints"), strict=True):
        assert array.tobytes() == expected.tobytes()


def assert_lines_until_the_newest_checkpoint(store: FakeBucket, whole: Path) -> int:
    """Lines up to the newest checkpoint, whose step is returned, are in the store.

    Its own evaluation comes after it, and is done again by whoever goes on.
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
