"""The mirror of a run's folder in a bucket, and buckets that cannot be used."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.run import folder as folders
from hyla_lm.run.folder import Mirror, RunFolder
from hyla_lm.storage import as_path
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import WORKDIR, wait_until

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
pytestmark = pytest.mark.usefixtures("here")


def mirror_of(local: Path) -> Mirror:
    return Mirror(local, as_path(WORKDIR), lambda: None)


def test_objects_are_the_files_at_every_copy_and_only_what_has_grown_is_sent(
    bucket: FakeBucket, tmp_path: Path
) -> None:
    copies, events = mirror_of(tmp_path), tmp_path / "folder" / "events"
    events.parent.mkdir()
    events.write_bytes(b"one")
    (tmp_path / "lines").write_bytes(b"{}")
    copies.copy()
    assert bucket.objects == {"bucket/run/folder/events": b"one", "bucket/run/lines": b"{}"}
    sent = len(bucket.requests)
    with events.open("ab") as file:
        file.write(b" two")
    copies.close()
    assert bucket.objects["bucket/run/folder/events"] == b"one two"
    assert not any("run/lines" in request for request in bucket.requests[sent:])


def test_files_are_copied_as_time_passes_and_a_failure_is_raised_where_the_run_checks(
    bucket: FakeBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "MIRROR_SECONDS", 0.01)
    copies = mirror_of(tmp_path)
    (tmp_path / "a").write_bytes(b"a")
    wait_until(lambda: bucket.objects == {"bucket/run/a": b"a"})
    copies.check()
    bucket.fail(503, 10**9)
    (tmp_path / "b").write_bytes(b"b")
    for check in (copies.check, copies.copy, copies.close):
        with pytest.raises(UserError, match="gs://bucket/run/b cannot be written now"):
            wait_until(check)


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
    "objects that may not be written": (403, "POST ", "written .Forbidden.*storage.objectAdmin"),
    "no credentials": (401, "/b/bucket", "gs://bucket/run cannot be reached .*gcloud auth"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_bucket_that_cannot_be_used_is_named_at_once(bucket: FakeBucket, mistake: str) -> None:
    status, where, message = MISTAKES[mistake]
    bucket.fail(status, 10**9, where)
    with pytest.raises(UserError, match=f"(?s){message}"):
        RunFolder(WORKDIR).check_shared()


def test_a_bucket_that_orbax_may_not_look_at_is_named_at_once(bucket: FakeBucket) -> None:
    bucket.buckets_can_be_seen = False
    with pytest.raises(UserError, match="gs://bucket cannot be looked at .*legacyBucketReader"):
        Checkpointer(as_path(f"{WORKDIR}/checkpoints"), 1)


def test_a_bucket_that_does_not_answer_may_answer_later(bucket: FakeBucket) -> None:
    bucket.fail(500, 10**9)
    with pytest.raises(Unavailable, match="gs://bucket/run cannot be reached .*500"):
        RunFolder(WORKDIR)
