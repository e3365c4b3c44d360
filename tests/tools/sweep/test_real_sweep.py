"""A sweep of real runs: stopped in the middle of one, and continued by the same command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.run_lines import measured
from tests.tiny_runs import write_gin

ROOT = Path(__file__).parents[3]
STEPS = 200
COMPILED_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
SMALLEST = (
    *(f"TrainConfig.steps={STEPS}", f"TrainConfig.eval_every={STEPS}", "LogConfig.every=1"),
    *(f"CheckpointConfig.every={STEPS}", "ModelConfig.attention=softmax"),
)


def command(rows: Rows, home: Path) -> list[str]:
    """A sweep of two points."""
    return [
        *(sys.executable, "-m", "hyla_lm", "sweep", f"--gin_file={write_gin(home, rows)}"),
        *(f"--workdir={home / 'sweep'}", "--over", "OptimizerConfig.learning_rate=1e-3,3e-2"),
        *(f"--gin.{binding}" for binding in SMALLEST),
    ]


def wait_for_lines(workdir: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has logged some steps."""
    place, deadline = workdir / "metrics.jsonl", time.monotonic() + 300
    while not place.exists() or len(place.read_bytes().splitlines()) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.full
def test_a_stopped_sweep_continues_where_it_was(tiny_rows: Rows, tmp_path: Path) -> None:
    arguments, folder = command(tiny_rows, tmp_path), tmp_path / "sweep"
    rates = ("0.001", "0.03")
    first, second = runs = [folder / f"learning_rate={rate}" / "seed=0" for rate in rates]
    environment = {**os.environ, COMPILED_FROM: "0", "PYTHONPATH": str(ROOT)}
    sweep = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for_lines(second, sweep)
    sweep.send_signal(signal.SIGTERM)
    [*_, last] = sweep.communicate(timeout=120)[1].splitlines()
    assert sweep.returncode == 75 and "stopped with 1 of 2 runs left to train" in last
    done = (first / "summary.json").stat().st_mtime_ns
    [saved] = (path.name for path in (second / "checkpoints").iterdir())
    assert not (second / "summary.json").exists() and 0 < int(saved) < STEPS

    again = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert "2 runs, 1 of them finished" in again.stdout
    assert f"from the checkpoint of step {saved}" in Path(f"{second}.txt").read_text()
    assert (first / "summary.json").stat().st_mtime_ns == done
    ranking = json.loads((folder / "sweep.json").read_text())
    assert ranking["points"][0]["point"] == "learning_rate=0.03"
    assert [len(measured(run, "train/")) for run in runs] == [STEPS] * len(runs)
