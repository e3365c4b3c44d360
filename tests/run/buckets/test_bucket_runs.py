"""A run whose folder is in a bucket: what is there is whole, and a kill loses nothing.

tests/faults/test_storage_errors.py fails requests, once or for as long as the run lasts.
"""

import json
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED
from hyla_lm.run.lock import LEASE_SECONDS
from tests import preloaded
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import (
    STEPS,
    WORKDIR,
    Trainer,
    assert_equal,
    assert_lines_until_the_newest_checkpoint,
    process,
    train,
    whole_steps,
)
from tests.run_lines import measured_in

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")

# In a checkpoint, and in the deletion of one.
KILLS = ("name=run/checkpoints/4/state/ocdbt.process_0/d/", "DELETE /storage/v1/b/bucket/o/run/ch")


@pytest.mark.parametrize("moment", [KILLS[0], pytest.param(KILLS[1], marks=pytest.mark.full)])
def test_a_killed_run_resumes_from_the_bucket_only(
    moment: str, bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    killed = Trainer(bucket, gin_file, moment, signal.SIGKILL)
    assert killed.ended()[0] == -signal.SIGKILL
    newest = assert_lines_until_the_newest_checkpoint(bucket, whole)
    bucket.ahead = timedelta(seconds=LEASE_SECONDS)  # else the next run waits for the lease
    done = train(gin_file, bucket)
    assert done.returncode == 0, done.stderr
    assert f"from the checkpoint of step {newest}" in done.stdout or not newest
    assert_equal(bucket, whole, tmp_path)


def test_a_run_asked_to_stop_saves_in_the_bucket_and_resumes(
    bucket: FakeBucket, gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    stopped = Trainer(bucket, gin_file, "name=run/checkpoints/2/commit_success", signal.SIGTERM)
    status, errors = stopped.ended()
    assert status == STOPPED, errors
    newest = whole_steps(bucket)[-1]
    lines = measured_in(bucket.objects["bucket/run/metrics.jsonl"])
    assert lines[-1]["step"] == newest and newest > 2
    done = train(gin_file, bucket)
    assert done.returncode == 0, done.stderr
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.full
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


def output_of(bucket: FakeBucket, *args: str) -> str:
    done = preloaded.run(**process(bucket, "-m", "hyla_lm", *args, f"--workdir={WORKDIR}"))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_a_run_in_a_bucket_is_traced_evaluated_sampled_and_followed(
    bucket: FakeBucket, gin_file: Path
) -> None:
    bucket.objects["bucket/run/profile"] = b"2"
    done = train(gin_file, bucket, "", "CheckpointConfig.keep=9", "TrainConfig.eval_every=0")
    assert done.returncode == 0, done.stderr
    (trace,) = [name for name in bucket.objects if name.endswith(".xplane.pb")]
    assert trace.startswith("bucket/run/plugins/profile/") and "_step_1/" in trace
    assert "bucket/run/profile" not in bucket.objects

    summary = json.loads(bucket.objects["bucket/run/summary.json"])
    assert json.loads(output_of(bucket, "evaluate")) == {"step": STEPS, **summary["validation"]}
    assert output_of(bucket, "sample", "--prompt=ba", "--max_tokens=4").startswith("ba")

    before = dict(bucket.objects)
    output_of(bucket, "evaluate", "--follow")
    lines = measured_in(bucket.objects["bucket/run/evaluator/metrics.jsonl"])
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert any(name.startswith("bucket/run/evaluator/events") for name in bucket.objects)
    assert {n: c for n, c in bucket.objects.items() if "/evaluator/" not in n} == before
