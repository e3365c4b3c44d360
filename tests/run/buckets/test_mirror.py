"""The mirror of a run's folder in a bucket, and buckets that cannot be used."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.errors import UserError
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.run import folder as folders
from hyla_lm.run.folder import Mirror, RunFolder
from hyla_lm.storage import as_path
from tests.run.buckets.fake_bucket import DROPPED, FakeBucket
from tests.run.buckets.runs import WORKDIR

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")


@pytest.mark.usefixtures("here")
class TestMirror:
    """Files of a local folder, as objects."""

    def test_objects_are_the_files_at_every_copy(self, bucket: FakeBucket, tmp_path: Path) -> None:
        copies = Mirror(tmp_path, as_path(WORKDIR), lambda: None)
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "events").write_bytes(b"one")
        copies.copy()
        assert bucket.objects == {"bucket/run/folder/events": b"one"}
        with (tmp_path / "folder" / "events").open("ab") as events:
            events.write(b" two")
        (tmp_path / "metrics.jsonl").write_bytes(b"{}")
        copies.close()
        assert bucket.objects["bucket/run/folder/events"] == b"one two"
        assert bucket.objects["bucket/run/metrics.jsonl"] == b"{}"

    def test_only_what_has_grown_is_sent(self, bucket: FakeBucket, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"a")
        (tmp_path / "b").write_bytes(b"b")
        copies = Mirror(tmp_path, as_path(WORKDIR), lambda: None)
        copies.copy()
        sent = len(bucket.requests)
        (tmp_path / "b").write_bytes(b"bb")
        copies.close()
        assert bucket.objects == {"bucket/run/a": b"a", "bucket/run/b": b"bb"}
        assert not any("run/a" in request for request in bucket.requests[sent:])

    def test_time_passing_is_enough(
        self, bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folders, "MIRROR_SECONDS", 0.01)
        copies = Mirror(tmp_path, as_path(WORKDIR), lambda: None)
        (tmp_path / "a").write_bytes(b"a")
        wait_until(lambda: bucket.objects == {"bucket/run/a": b"a"})
        copies.close()

    def test_a_failure_in_the_background_is_raised_where_the_run_looks(
        self, bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(folders, "MIRROR_SECONDS", 0.01)
        copies = Mirror(tmp_path, as_path(WORKDIR), lambda: None)
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
        copies = Mirror(tmp_path, as_path(WORKDIR), lambda: None)
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
    folder.keep_lines_until(2)
    board = TensorBoard(folder.logs, 2)
    folder.append_line(3, {"x": 0.5})
    board.write(3, {"x": 0.5})
    folder.mirror()
    assert bucket.objects["bucket/run/metrics.jsonl"] == (
        b'{"step": 1}\n{"step": 2}\n{"step": 3, "x": 0.5}\n'
    )
    [events] = [name for name in bucket.objects if name.startswith("bucket/run/events.")]
    viewer = EventAccumulator(f"gs://{events.rpartition('/')[0]}")
    viewer.Reload()
    assert [(event.step, event.value) for event in viewer.Scalars("x")] == [(3, 0.5)]
    board.close()
    folder.append_line(4, {"x": 0.25})
    folder.close()
    assert bucket.objects["bucket/run/metrics.jsonl"].endswith(b'{"step": 4, "x": 0.25}\n')
    assert not folder.logs.exists()


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
        folder.check_shared()


@pytest.mark.usefixtures("here")
def test_a_bucket_that_orbax_may_not_look_at_is_named_at_once(bucket: FakeBucket) -> None:
    bucket.buckets_can_be_seen = False
    with pytest.raises(UserError, match="gs://bucket cannot be looked at .*legacyBucketReader"):
        Checkpointer(as_path(f"{WORKDIR}/checkpoints"), 1)


def test_a_workdir_of_another_kind_of_store_is_refused() -> None:
    with pytest.raises(UserError, match="--workdir=s3://a/b must be a folder of a disk or begin w"):
        RunFolder("s3://a/b")
