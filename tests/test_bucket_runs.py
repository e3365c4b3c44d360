"""A run whose folder is in a bucket: what is there is whole, and a kill loses nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla_lm import mirror
from hyla_lm.checkpoint import Checkpointer
from hyla_lm.config import UserError
from hyla_lm.input import files
from hyla_lm.input.files import as_path
from hyla_lm.mirror import Mirror
from hyla_lm.preemption import EXIT_STATUS
from hyla_lm.run_folder import RunFolder
from hyla_lm.tensorboard import TensorBoard
from tests.conftest import SEQUENCE_LENGTH, TINY
from tests.fake_bucket import DROPPED, FakeBucket, lead_here

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")

WORKDIR = "gs://bucket/run"
STEPS = 6
SMALL = """
TrainConfig.steps = 6
TrainConfig.eval_every = 3
LogConfig.every = 1
CheckpointConfig.every = 2
CheckpointConfig.keep = 2
ModelConfig.num_layers = 1
"""
# Tries take no time, so that a store that stays away is given up soon.
IMPATIENT = """
import asyncio, sys
from types import SimpleNamespace
import gcsfs.retry
from hyla_lm import cli, mirror
from hyla_lm.input import files

files.FIRST_WAIT_SECONDS = files.LONGEST_WAIT_SECONDS = 1e-3
mirror.MIRROR_SECONDS = 0.1
gcsfs.retry.asyncio = SimpleNamespace(sleep=lambda _: asyncio.sleep(1e-3))
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with FakeBucket() as store:
        store.buckets_can_be_seen = True
        yield store


@pytest.fixture
def here(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's gs:// is the stand-in too, and nobody waits between tries."""
    lead_here(bucket, monkeypatch)
    monkeypatch.setattr(files, "FIRST_WAIT_SECONDS", 1e-3)
    monkeypatch.setattr(files, "LONGEST_WAIT_SECONDS", 1e-3)
    sleep = SimpleNamespace(sleep=lambda _: asyncio.sleep(1e-3))
    monkeypatch.setattr("gcsfs.retry.asyncio", sleep)


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bucket_runs") / "small.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH) + SMALL)
    return path


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    """The folder, on a disk, of a run that was never stopped."""
    workdir = gin_file.parent / "whole"
    done = train(gin_file, str(workdir), {})
    assert done.returncode == 0, done.stderr
    return workdir


class Trainer:
    """A trainer that can be sent a signal while the store is asked for something."""

    def __init__(self, store: FakeBucket, gin_file: Path, where: str, number: int, count: int = 1):
        self.where, self.number, self.count = where, number, count
        store.watcher = self.watch
        self.process = subprocess.Popen(**command(gin_file, WORKDIR, store.environment))

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
    """What starts a trainer; a cache of compiled programs spares most of its time."""
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(gin_file.parent / "programs"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    start = ["-c", script] if script else ["-m", "hyla_lm"]
    return {
        "args": [
            *(sys.executable, *start),
            *("train", f"--gin_file={gin_file}", f"--workdir={workdir}"),
            *(f"--gin.{binding}" for binding in bindings),
        ],
        "env": {**os.environ, **cache, **environment},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }


def train(
    gin_file: Path, workdir: str, environment: dict[str, str], script: str = "", *bindings: str
) -> SimpleNamespace:
    process = subprocess.Popen(**command(gin_file, workdir, environment, script, *bindings))
    output, errors = process.communicate(timeout=600)
    return SimpleNamespace(returncode=process.returncode, stdout=output, stderr=errors)


def losses(metrics: bytes) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in metrics.splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith("perf/")}
        for line in lines
    ]


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
    """The run in the store has the lines and, byte for byte, the parameters of a whole one."""
    metrics = store.objects["bucket/run/metrics.jsonl"]
    assert losses(metrics) == losses((whole / "metrics.jsonl").read_bytes())
    assert len(whole_steps(store)) == 2 and whole_steps(store)[-1] == STEPS
    found = final_arrays(download(store, home) / "checkpoints")
    for array, expected in zip(found, final_arrays(whole / "checkpoints"), strict=True):
        assert array.tobytes() == expected.tobytes()


def assert_lines_until_the_newest_checkpoint(store: FakeBucket, whole: Path) -> int:
    """Lines up to the newest checkpoint, whose step is returned, are in the store."""
    newest = max(whole_steps(store), default=0)
    there = losses(store.objects.get("bucket/run/metrics.jsonl", b""))
    expected = losses((whole / "metrics.jsonl").read_bytes())
    until = [[line for line in lines if line["step"] <= newest] for lines in (there, expected)]
    assert until[0] == until[1]
    return newest


KILLS = {
    "an array of a checkpoint": "name=run/checkpoints/4/state/ocdbt.process_0/d/",
    "the last object of a checkpoint": "name=run/checkpoints/4/commit_success.txt",
    "the lines before a checkpoint": "name=run/metrics.jsonl",
    "the deletion of an old checkpoint": "DELETE /storage/v1/b/bucket/o/run/checkpoints/2/state/",
    "the summary": "name=run/summary.json",
}


@pytest.mark.parametrize(
    "moment",
    [
        name if name.startswith("an array") else pytest.param(name, marks=pytest.mark.full)
        for name in KILLS
    ],
)
def test_a_killed_run_goes_on_from_the_bucket_alone(
    moment: str, bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    killed = Trainer(bucket, gin_file, KILLS[moment], signal.SIGKILL)
    assert killed.ended()[0] == -signal.SIGKILL
    newest = assert_lines_until_the_newest_checkpoint(bucket, whole)
    bucket.watcher = lambda _: None
    done = train(gin_file, WORKDIR, bucket.environment)
    assert done.returncode == 0, done.stderr
    assert f"from the checkpoint of step {newest}" in done.stdout or not newest
    assert_equal(bucket, whole, tmp_path)
    assert json.loads(bucket.objects["bucket/run/summary.json"])["step"] == STEPS


def test_a_run_asked_to_stop_saves_in_the_bucket_and_goes_on(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    stopped = Trainer(bucket, gin_file, "name=run/checkpoints/2/commit_success", signal.SIGTERM)
    status, errors = stopped.ended()
    assert status == EXIT_STATUS, errors
    newest = whole_steps(bucket)[-1]
    lines = losses(bucket.objects["bucket/run/metrics.jsonl"])
    assert lines[-1]["step"] == newest and newest > 2
    bucket.watcher = lambda _: None
    done = train(gin_file, WORKDIR, bucket.environment)
    assert done.returncode == 0, done.stderr
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.usefixtures("here")
class TestMirror:
    """Files of a local folder, as objects."""

    def test_objects_are_the_files_at_every_copy(self, bucket: FakeBucket, tmp_path: Path) -> None:
        copies = Mirror(tmp_path, as_path(WORKDIR))
        (tmp_path / "tensorboard").mkdir()
        (tmp_path / "tensorboard" / "events").write_bytes(b"one")
        copies.copy()
        assert bucket.objects == {"bucket/run/tensorboard/events": b"one"}
        with (tmp_path / "tensorboard" / "events").open("ab") as events:
            events.write(b" two")
        (tmp_path / "metrics.jsonl").write_bytes(b"{}")
        copies.close()
        assert bucket.objects["bucket/run/tensorboard/events"] == b"one two"
        assert bucket.objects["bucket/run/metrics.jsonl"] == b"{}"

    def test_only_what_has_grown_is_sent(self, bucket: FakeBucket, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "b").write_bytes(b"b")
        copies = Mirror(tmp_path, as_path(WORKDIR))
        copies.copy()
        sent = len(bucket.requests)
        (tmp_path / "b").write_bytes(b"bb")
        copies.close()
        assert bucket.objects == {"bucket/run/a": b"a", "bucket/run/b": b"bb"}
        assert not any("run/a" in request for request in bucket.requests[sent:])

    def test_time_passing_is_enough(
        self, bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirror, "MIRROR_SECONDS", 0.01)
        copies = Mirror(tmp_path, as_path(WORKDIR))
        (tmp_path / "a").write_bytes(b"a")
        wait_until(lambda: bucket.objects == {"bucket/run/a": b"a"})
        copies.close()

    def test_a_failure_in_the_background_is_raised_where_the_run_looks(
        self, bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(mirror, "MIRROR_SECONDS", 0.01)
        copies = Mirror(tmp_path, as_path(WORKDIR))
        copies.check()
        bucket.fail(503, 10**9)
        (tmp_path / "a").write_bytes(b"a")
        for look in (copies.check, copies.copy, copies.close):
            with pytest.raises(UserError, match="gs://bucket/run/a could not be written in 20 tr"):
                wait_until(look)

    @pytest.mark.parametrize("status", [503, DROPPED])
    def test_failures_that_pass_are_not_noticed(
        self, bucket: FakeBucket, tmp_path: Path, status: int
    ) -> None:
        copies = Mirror(tmp_path, as_path(WORKDIR))
        bucket.fail(status, 20, "POST")
        (tmp_path / "a").write_bytes(b"a")
        copies.close()
        assert bucket.objects == {"bucket/run/a": b"a"} and not bucket.faults[0].count


def wait_until(look: Callable[[], Any]) -> None:
    """Returns when `look` does with something true; what it raises is raised."""
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("here")
def test_lines_and_events_of_a_folder_in_a_bucket(bucket: FakeBucket) -> None:
    bucket.objects["bucket/run/metrics.jsonl"] = b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    folder = RunFolder(WORKDIR)
    folder.keep_metrics_until(2)
    board = TensorBoard(folder.tensorboard, 2)
    folder.append_metrics(3, {"x": 0.5})
    board.scalars(3, {"x": 0.5})
    folder.mirror()
    assert bucket.objects["bucket/run/metrics.jsonl"] == (
        b'{"step": 1}\n{"step": 2}\n{"step": 3, "x": 0.5}\n'
    )
    [events] = [name for name in bucket.objects if name.startswith("bucket/run/tensorboard/")]
    viewer = EventAccumulator(f"gs://{events.rpartition('/')[0]}")
    viewer.Reload()
    assert [(event.step, event.value) for event in viewer.Scalars("x")] == [(3, 0.5)]
    board.close()
    folder.append_metrics(4, {"x": 0.25})
    folder.close()
    assert bucket.objects["bucket/run/metrics.jsonl"].endswith(b'{"step": 4, "x": 0.25}\n')
    assert not folder.tensorboard.exists()


MISTAKES = {
    "a bucket that does not exist": (404, "/b/bucket", "used .Bucket does not exist.*bucket that "),
    "objects that may not be listed": (403, "GET ", "gs://bucket/run cannot be .*Forbidden"),
    "objects that may not be written": (403, "POST ", "written .Forbidden.*storage.objectAdmin"),
    "objects that may not be deleted": (403, "DELETE ", "written .Forbidden.*storage.objectAdmin"),
    "no credentials": (401, "/b/bucket", "gs://bucket/run cannot be reached .*gcloud auth"),
}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bucket_that_cannot_be_used_is_named_at_once(bucket: FakeBucket, mistake: str) -> None:
    status, where, message = MISTAKES[mistake]
    bucket.fail(status, 10**9, where)
    with pytest.raises(UserError, match=f"(?s){message}"):
        folder = RunFolder(WORKDIR)
        folder.remove_mark(folder.leave_mark())


@pytest.mark.usefixtures("here")
def test_a_bucket_that_orbax_may_not_look_at_is_named_at_once(bucket: FakeBucket) -> None:
    bucket.buckets_can_be_seen = False
    with pytest.raises(UserError, match="gs://bucket cannot be looked at .*legacyBucketReader"):
        Checkpointer(as_path(f"{WORKDIR}/checkpoints"), 1)


def test_a_workdir_of_another_kind_of_store_is_refused() -> None:
    with pytest.raises(UserError, match="--workdir=s3://a/b must be a folder of a disk or begin w"):
        RunFolder("s3://a/b")


@pytest.mark.full
@pytest.mark.parametrize("status", [503, DROPPED])
def test_a_run_is_the_same_when_requests_fail(
    status: int, bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    for where in (
        "POST /upload/storage/v1/b/bucket/o?name=run/metrics.jsonl",
        "POST /upload/storage/v1/b/bucket/o?uploadType=media&name=run/checkpoints/2/state/ocdbt",
        "name=run/checkpoints/4/state/_METADATA",
        "name=run/checkpoints/4/commit_success.txt",
        "GET /storage/v1/b/bucket/o/run/checkpoints/2/state/ocdbt.process_0/d/",
    ):
        bucket.fail(status, 2, where)
    done = train(gin_file, WORKDIR, bucket.environment, IMPATIENT)
    assert done.returncode == 0, done.stderr
    assert_equal(bucket, whole, tmp_path)
    assert [fault.where for fault in bucket.faults if fault.count] == []


@pytest.mark.full
def test_a_connection_that_went_dead_is_tried_again(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    stuck: list[str] = []

    def sleep(request: str) -> None:
        if "uploadType=media&name=run/checkpoints/2/state/ocdbt" in request and not stuck:
            stuck.append(request)
            time.sleep(300)

    bucket.watcher = sleep
    impatient = {"TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "2"}
    started = time.monotonic()
    done = train(gin_file, WORKDIR, bucket.environment | impatient)
    assert done.returncode == 0, done.stderr
    assert stuck and time.monotonic() - started < 200
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.full
def test_a_store_that_stays_away_ends_the_run_and_the_next_goes_on(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    def leave(request: str) -> None:
        if "name=run/checkpoints/2/commit_success" in request:
            bucket.fail(503, 10**9, "run/metrics.jsonl")

    bucket.watcher = leave
    done = train(gin_file, WORKDIR, bucket.environment, IMPATIENT)
    assert done.returncode == 69
    assert "gs://bucket/run/metrics.jsonl could not be written in 20 tries" in done.stderr
    assert_lines_until_the_newest_checkpoint(bucket, whole)
    assert whole_steps(bucket)[-1] < STEPS
    bucket.watcher = lambda _: None
    bucket.faults.clear()
    assert train(gin_file, WORKDIR, bucket.environment).returncode == 0
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.full
def test_logs_that_cannot_be_mirrored_end_the_run_between_checkpoints(
    bucket: FakeBucket, gin_file: Path
) -> None:
    endless = ("TrainConfig.steps=10000000", "CheckpointConfig.every=10000000")
    bucket.fail(503, 10**9, "name=run/metrics.jsonl")
    done = train(gin_file, WORKDIR, bucket.environment, IMPATIENT, *endless)
    assert done.returncode == 69
    assert "gs://bucket/run/metrics.jsonl could not be written in 20 tries" in done.stderr
    assert not any("checkpoints" in name for name in bucket.objects)


@pytest.mark.full
def test_a_checkpoint_that_cannot_be_saved_ends_the_run_and_is_never_restored(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    bucket.fail(403, 10**9, "name=run/checkpoints/4/state/ocdbt")
    done = train(gin_file, WORKDIR, bucket.environment)
    assert done.returncode not in (0, EXIT_STATUS)
    assert "gs://bucket/run/checkpoints/4/state" in done.stderr
    assert whole_steps(bucket) == [2]
    assert "bucket/run/summary.json" not in bucket.objects
    bucket.faults.clear()
    done = train(gin_file, WORKDIR, bucket.environment)
    assert done.returncode == 0, done.stderr
    assert "from the checkpoint of step 2" in done.stdout
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.full
def test_evaluate_and_sample_restore_from_the_bucket(bucket: FakeBucket, gin_file: Path) -> None:
    assert train(gin_file, WORKDIR, bucket.environment).returncode == 0
    started = command(gin_file, WORKDIR, bucket.environment)
    for verb in (["evaluate"], ["sample", "--prompt=ba", "--max_tokens=4"]):
        args = [sys.executable, "-m", "hyla_lm", *verb, f"--workdir={WORKDIR}"]
        process = subprocess.Popen(**{**started, "args": args})
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        if verb == ["evaluate"]:
            summary = json.loads(bucket.objects["bucket/run/summary.json"])
            assert json.loads(output) == {"step": STEPS, **summary["validation"]}
        else:
            assert output.startswith("ba")
