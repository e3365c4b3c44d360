"""A sweep of real runs: stopped in the middle of one, and gone on with by the same command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.bad_input.conftest import TRAINED
from tests.run_lines import measured

ROOT = Path(__file__).parents[2]
STEPS = 200
SMALLEST = (
    *(f"TrainConfig.steps={STEPS}", f"TrainConfig.eval_every={STEPS}", "LogConfig.every=1"),
    *(f"CheckpointConfig.every={STEPS}", "ModelConfig.attention=softmax"),
)


@pytest.fixture
def command(tiny_rows: Rows, tmp_path: Path) -> list[str]:
    """A sweep of two points and two seeds."""
    (tmp_path / "run.gin").write_text(TRAINED.format(rows=tiny_rows))
    return [
        *(sys.executable, "-m", "hyla_lm", "sweep", f"--gin_file={tmp_path / 'run.gin'}"),
        *(f"--workdir={tmp_path / 'sweep'}", "--over", "OptimizerConfig.learning_rate=1e-3,3e-2"),
        *("--seeds=2", *(f"--gin.{binding}" for binding in SMALLEST)),
    ]


@pytest.fixture
def environment() -> dict[str, str]:
    """Every program is compiled once, and fast."""
    quick = {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    return {**os.environ, **quick, "PYTHONPATH": str(ROOT)}


def wait_for_lines(workdir: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has logged some steps."""
    place, deadline = workdir / "metrics.jsonl", time.monotonic() + 300
    while not place.exists() or len(place.read_bytes().splitlines()) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stopped_sweep_goes_on_where_it_was(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "sweep"
    first, second = (folder / "learning_rate=0.001" / f"seed={seed}" for seed in (0, 1))
    sweep = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    wait_for_lines(second, sweep)
    sweep.send_signal(signal.SIGTERM)
    [*_, last] = sweep.communicate(timeout=120)[1].splitlines()
    assert sweep.returncode == 75
    assert last == "hyla-lm: stopped with 3 of 4 runs left to train; the same command goes on"
    done = (first / "summary.json").stat().st_mtime_ns
    [saved] = (path.name for path in (second / "checkpoints").iterdir())
    assert not (second / "summary.json").exists() and 0 < int(saved) < STEPS

    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0, again.stderr
    assert "4 runs, 1 of them finished" in again.stdout
    assert f"from the checkpoint of step {saved}" in Path(f"{second}.txt").read_text()
    assert (first / "summary.json").stat().st_mtime_ns == done
    found = json.loads((folder / "summary.json").read_text())
    assert found["best"] == "learning_rate=0.03"
    runs = [folder / run["folder"] for point in found["points"] for run in point["runs"]]
    assert [len(measured(run, "train/")) for run in runs] == [STEPS] * 4
    assert "of 2" in (folder / "summary.md").read_text()
