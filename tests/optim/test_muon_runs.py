"""Runs with Muon and a warmup-stable-decay schedule: stopped and branched."""

import shutil
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.faults.runs import arrays
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

MUON_WSD = """
CheckpointConfig.keep = 9
UpdatePolicy.nonfinite = "skip"
OptimizerConfig.optimizer = "muon"
OptimizerConfig.schedule = "wsd"
OptimizerConfig.decay_share = 0.25
"""
STEPS, SAVED = 12, 5


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("muon"), tiny_rows, MUON_WSD)


@pytest.fixture(scope="module")
def run(gin_file: Path) -> Path:
    """A finished run with checkpoints of steps 5, 10 and 12."""
    workdir = gin_file.parent / "run"
    assert train(gin_file, workdir) == 0
    return workdir


def test_a_run_that_goes_on_ends_like_one_never_stopped(
    run: Path, gin_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = tmp_path / "stopped"
    shutil.copytree(run, stopped)
    for lost in ("summary.json", "checkpoints/10", "checkpoints/12"):
        path = stopped / lost
        path.unlink() if path.is_file() else shutil.rmtree(path)
    assert train(gin_file, stopped) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "from the checkpoint of step 5" in out
    assert arrays(stopped, STEPS) == arrays(run, STEPS)
    assert measured(stopped) == measured(run)


def test_a_trunk_that_has_not_decayed_branches_into_a_decay(
    run: Path, gin_file: Path, tmp_path: Path
) -> None:
    saved = f"checkpoints/{SAVED}"
    shutil.copytree(run / saved, tmp_path / "branch" / saved)
    decay = ["TrainConfig.steps = 9", "OptimizerConfig.final_fraction = 0.0"]
    decay += [f"OptimizerConfig.decay_begins = {SAVED}"]
    assert train(gin_file, tmp_path / "branch", *decay, "LogConfig.every = 1") == 0
    rates = [line["optim/learning_rate"] for line in measured(tmp_path / "branch", "optim/")]
    assert rates == pytest.approx([1e-2, 0.75e-2, 0.5e-2, 0.25e-2])


def test_adamw_does_not_go_on_from_a_state_of_muon(
    run: Path, gin_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer = ["TrainConfig.steps = 20", "OptimizerConfig.optimizer = 'adamw'"]
    assert train(gin_file, run, *longer) == 2
    err = capsys.readouterr().err
    assert "OptimizerConfig.optimizer = 'muon'" in err and len(err.splitlines()) == 1
