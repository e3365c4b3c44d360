"""Runs with Muon and a warmup-stable-decay schedule: stopped, branched, on a mesh."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.conftest import SEQUENCE_LENGTH, TINY
from tests.faults.runs import arrays
from tests.run_lines import measured
from tests.scripts import output_of

pytestmark = pytest.mark.usefixtures("programs_once")

MUON_WSD = """
CheckpointConfig.keep = 9
UpdatePolicy.nonfinite = "skip"
OptimizerConfig.optimizer = "muon"
OptimizerConfig.schedule = "wsd"
OptimizerConfig.decay_share = 0.25
"""
STEPS, SAVED = 12, 5
# Float32 sums over devices in another order: 5e-6 was seen.
RELATIVE_LOSS = 2e-5


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("muon") / "tiny.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH) + MUON_WSD)
    return path


def train(gin_file: Path, workdir: Path, *bindings: str) -> int:
    given = [f"--gin.{binding}" for binding in bindings]
    return main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}", *given])


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
    assert "from the checkpoint of step 5; Muon and AdamW, learning rate 0 to 0.01 in 2" in out
    assert "linear from step 9 to 0.001" in out
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


def test_four_devices_follow_one() -> None:
    alone, divided = json.loads(output_of("tests.optim.muon_meshes", devices=4))
    np.testing.assert_allclose(divided["losses"], alone["losses"], rtol=RELATIVE_LOSS)
    assert alone["losses"][-1] < alone["losses"][0]
    indivisible = 256  # the biases of two outputs and the polynomial, say
    assert divided["bytes"] <= alone["bytes"] / 2 + indivisible
