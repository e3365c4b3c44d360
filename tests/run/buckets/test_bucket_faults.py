"""Requests of a run that fail, hang or are refused: it resumes, or ends with the reason."""

import os
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import (
    STEPS,
    assert_equal,
    assert_lines_until_the_newest_checkpoint,
    train,
    whole_steps,
)

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
pytestmark = pytest.mark.full

# Tries take no time, so that a store that stays away is given up soon.
IMPATIENT = """
import asyncio, sys
from types import SimpleNamespace
import gcsfs.retry
from hyla_lm import storage
from hyla_lm.cli.main import main
from hyla_lm.run import folder

storage.RETRY_SECONDS, storage.GIVE_UP_SECONDS = (1e-3,), 1.0
folder.MIRROR_SECONDS = 0.1
gcsfs.retry.asyncio = SimpleNamespace(sleep=lambda _: asyncio.sleep(1e-3))
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_is_the_same_when_requests_fail(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    for where in (
        "POST /upload/storage/v1/b/bucket/o?name=run/metrics.jsonl",
        "POST /upload/storage/v1/b/bucket/o?uploadType=media&name=run/checkpoints/2/state/ocdbt",
        "name=run/checkpoints/4/state/_METADATA",
        "name=run/checkpoints/4/commit_success.txt",
        "GET /storage/v1/b/bucket/o/run/checkpoints/2/state/ocdbt.process_0/d/",
    ):
        bucket.fail(503, 2, where)
    done = train(gin_file, bucket, IMPATIENT)
    assert done.returncode == 0, done.stderr
    assert_equal(bucket, whole, tmp_path)
    assert [fault.where for fault in bucket.faults if fault.count] == []


def test_a_store_that_stays_away_ends_the_run_and_the_next_resumes(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    def leave(request: str) -> None:
        if "name=run/checkpoints/2/commit_success" in request:
            bucket.fail(503, 10**9, "run/metrics.jsonl")

    bucket.watcher = leave
    done = train(gin_file, bucket, IMPATIENT)
    assert done.returncode == os.EX_UNAVAILABLE
    assert "gs://bucket/run/metrics.jsonl cannot be written now" in done.stderr
    assert_lines_until_the_newest_checkpoint(bucket, whole)
    assert whole_steps(bucket)[-1] < STEPS
    bucket.watcher = lambda _: None
    bucket.faults.clear()
    assert train(gin_file, bucket).returncode == 0
    assert_equal(bucket, whole, tmp_path)


def test_a_checkpoint_that_cannot_be_saved_ends_the_run_and_is_never_restored(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    bucket.fail(403, 10**9, "name=run/checkpoints/4/state/ocdbt")
    done = train(gin_file, bucket)
    assert done.returncode not in (0, STOPPED)
    assert "checkpoint gs://bucket/run/checkpoints/4 could not be saved (PERM" in done.stderr
    assert whole_steps(bucket) == [2]
    assert "bucket/run/summary.json" not in bucket.objects
    bucket.faults.clear()
    done = train(gin_file, bucket)
    assert done.returncode == 0, done.stderr
    assert "from the checkpoint of step 2" in done.stdout
    assert_equal(bucket, whole, tmp_path)
