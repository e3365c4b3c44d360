"""Traces of a run in a bucket, and an evaluator that follows it there."""

import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run.buckets.runs import WORKDIR, command, train
from tests.run_lines import measured_in

pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
pytestmark = pytest.mark.full


def test_a_trace_and_an_evaluation_are_in_the_bucket(bucket: FakeBucket, gin_file: Path) -> None:
    bucket.objects["bucket/run/profile"] = b"2"
    keep = "CheckpointConfig.keep=9"
    done = train(gin_file, WORKDIR, bucket.environment, "", keep, "TrainConfig.eval_every=0")
    assert done.returncode == 0, done.stderr
    (trace,) = [name for name in bucket.objects if name.endswith(".xplane.pb")]
    assert trace.startswith("bucket/run/plugins/profile/") and "_step_1/" in trace
    assert "bucket/run/profile" not in bucket.objects

    before = dict(bucket.objects)
    follow = [sys.executable, "-m", "hyla_lm", "evaluate", "--follow", f"--workdir={WORKDIR}"]
    here = command(gin_file, WORKDIR, bucket.environment) | {"args": follow}
    followed = preloaded.run(**here, timeout=300)
    assert followed.returncode == 0, followed.stderr
    lines = measured_in(bucket.objects["bucket/run/evaluator/metrics.jsonl"])
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert any(name.startswith("bucket/run/evaluator/events") for name in bucket.objects)
    of_the_run = {n: c for n, c in bucket.objects.items() if "/evaluator/" not in n}
    assert of_the_run == before
