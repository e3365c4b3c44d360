"""One run a folder, in a bucket: who gets the lease, who waits for it, and who lost it."""

import json
import re
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from hyla_lm.errors import Unavailable, UserError
from hyla_lm.run import lock
from hyla_lm.run.folder import RunFolder
from hyla_lm.storage import as_path
from tests import preloaded
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import WORKDIR, command, wait_until
from tests.tiny_runs import train

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
pytestmark = pytest.mark.usefixtures("here")

LOCK = "bucket/run/.lock"
OTHER = b'{"host": "host-a", "pid": 4242, "started": "2026-01-01T12:00:00+00:00", "token": "x"}'
NAMED = "process 4242 on host-a since 2026-01-01 12:00 UTC"
# A trainer that renews its lease, copies its logs and looks at both all the time.
EAGER = """
import sys
from hyla_lm.cli.main import main
from hyla_lm.run import folder, lock

lock.RENEW_SECONDS = lock.RETRY_SECONDS = folder.MIRROR_SECONDS = 0.1
sys.exit(main(sys.argv[1:]))
"""
ENDLESS = ("TrainConfig.steps=10000000", "CheckpointConfig.every=10000000")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "RETRY_SECONDS", 0.02)


def another_takes(bucket: FakeBucket, key: str = LOCK) -> None:
    bucket.answer(
        "POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={key[7:]}", {}, OTHER
    )


def test_a_lease_is_there_while_the_folder_is_open(bucket: FakeBucket) -> None:
    folder = RunFolder(WORKDIR)
    assert json.loads(bucket.objects[LOCK])["pid"] > 0
    folder.append_line(1, {"x": 1.0})
    folder.close()
    assert list(bucket.objects) == ["bucket/run/metrics.jsonl"]
    written = [r for r in bucket.requests if "metrics.jsonl" in r or "DELETE" in r]
    assert "DELETE" in written[-1], "the lease goes last"


@pytest.mark.parametrize("ahead", [-1000, 1000])
def test_a_lease_is_waited_out_by_the_clock_of_the_store(
    ahead: int, bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "LEASE_SECONDS", 1.5)
    bucket.ahead = timedelta(seconds=ahead)
    another_takes(bucket)
    started = time.monotonic()
    with closing(RunFolder(WORKDIR)):
        assert 1.3 < time.monotonic() - started < 15
        assert bucket.objects[LOCK] != OTHER


def test_of_two_that_take_over_one_gets_it(bucket: FakeBucket) -> None:
    another_takes(bucket)
    bucket.ahead = timedelta(seconds=91)
    other_came = []

    def come_first(request: str) -> None:
        is_takeover = re.match(r"POST .*ifGenerationMatch=[1-9]", request)
        if is_takeover and not other_came:
            other_came.append(request)
            another_takes(bucket)

    bucket.watcher = come_first
    with pytest.raises(UserError, match=f"is being trained by {NAMED}"):
        RunFolder(WORKDIR)
    assert other_came and bucket.objects == {LOCK: OTHER}


def test_a_write_whose_answer_was_lost_is_known_as_ours(bucket: FakeBucket) -> None:
    lease = lock.BucketLease(as_path(WORKDIR))
    lease._write(lease._generation)  # it is written, but the lease does not learn its generation
    assert lease._renew()
    lease.check()
    lease.release()
    assert bucket.objects == {}


def test_a_run_that_lost_its_lease_writes_no_more(bucket: FakeBucket) -> None:
    folder = RunFolder(WORKDIR)
    folder.append_line(1, {"x": 1.0})
    another_takes(bucket)
    assert folder._lock is not None and not folder._lock._renew()  # type: ignore[attr-defined]
    for write in (folder.check, folder.mirror, lambda: folder.write("a", "b"), folder.close):
        with pytest.raises(UserError, match=f"taken over by {NAMED}"):
            write()
    assert bucket.objects == {LOCK: OTHER}


def test_a_lease_that_cannot_be_renewed_is_given_up_by_its_own_clock(
    bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(lock, "LEASE_SECONDS", 2.0)
    folder = RunFolder(WORKDIR)
    bucket.fail(503, 10**9, "uploadType=multipart&ifGenerationMatch")
    time.sleep(2.2)
    for write in (folder.check, lambda: folder.write("a", "b")):
        with pytest.raises(Unavailable, match="could not be renewed for 2 s .*503.*start again"):
            write()
    bucket.faults.clear()
    wait_until(lambda: folder._lock._renew())  # type: ignore[union-attr]
    folder.close()
    assert bucket.objects == {}


def test_a_live_run_refuses_another_and_a_taken_lease_ends_it(
    bucket: FakeBucket, gin_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    started = command(gin_file, bucket, EAGER, *ENDLESS)
    first = preloaded.Popen(**started)
    wait_until(lambda: "bucket/run/metrics.jsonl" in bucket.objects or first.poll() is not None)
    assert first.poll() is None, first.communicate()
    assert train(gin_file, WORKDIR) == 2
    said, refused = capsys.readouterr()
    assert re.search(r"waits up to \d+ s for the lease of process", said)
    assert re.fullmatch(rf"hyla-lm: .* by process {first.pid} on \S+ since .*folder\.\n", refused)
    assert first.poll() is None
    another_takes(bucket)
    _, errors = first.communicate(timeout=60)
    assert first.returncode == 2
    [line] = [line for line in errors.splitlines() if "lease" in line]
    assert line.startswith(f"hyla-lm: --workdir={WORKDIR} was taken over by {NAMED}, since")
    assert bucket.objects[LOCK] == OTHER and "bucket/run/summary.json" not in bucket.objects
