"""A run whose folder is in a bucket: what is there is whole, and a kill loses nothing."""

import json
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.run.lock import LEASE_SECONDS
from tests import preloaded
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import (
    STEPS,
    WORKDIR,
    Trainer,
    assert_equal,
    assert_lines_until_the_newest_checkpoint,
    command,
    train,
    whole_steps,
)
from tests.run_lines import measured_in

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")

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
    bucket.ahead = timedelta(seconds=LEASE_SECONDS)  # else the next run waits for the lease
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
    lines = measured_in(bucket.objects["bucket/run/metrics.jsonl"])
    assert lines[-1]["step"] == newest and newest > 2
    bucket.watcher = lambda _: None
    done = train(gin_file, WORKDIR, bucket.environment)
    assert done.returncode == 0, done.stderr
    assert_equal(bucket, whole, tmp_path)


@pytest.mark.full
def test_evaluate_and_sample_restore_from_the_bucket(bucket: FakeBucket, gin_file: Path) -> None:
    assert train(gin_file, WORKDIR, bucket.environment).returncode == 0
    started = command(gin_file, WORKDIR, bucket.environment)
    for verb in (["evaluate"], ["sample", "--prompt=ba", "--max_tokens=4"]):
        args = [sys.executable, "-m", "hyla_lm", *verb, f"--workdir={WORKDIR}"]
        process = preloaded.Popen(**{**started, "args": args})
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        if verb == ["evaluate"]:
            summary = json.loads(bucket.objects["bucket/run/summary.json"])
            assert json.loads(output) == {"step": STEPS, **summary["validation"]}
        else:
            assert output.startswith("ba")
