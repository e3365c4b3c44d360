"""Held-out functions parted by how many of their terms a published split never trains."""

import json
from pathlib import Path

import numpy as np
import pytest

from docs.studies.untrained_terms import by_untrained, main
from hyla_lm.cli.main import main as hyla_lm
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic

pytestmark = pytest.mark.usefixtures("programs_once")

SMALL = """
TrainConfig.steps = 3
TrainConfig.batch_size = 8
ModelConfig.num_layers = 1
ModelConfig.model_dim = 8
ModelConfig.num_heads = 2
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 1
"""
OF_SUITE = {
    "fuzzy_logic": "FuzzyLogic.evaluation_examples = 8\nSEQUENCE_LENGTH = 8",
    "sraven": "Sraven.evaluation_examples = 8\nSraven.num_features = 2\nSraven.split = 'covering'",
}


def train(home: Path, suite: str, seed: int) -> Path:
    gin_file = home / "run.gin"
    lines = [f'include "gin/evals/{suite}_paper.gin"', SMALL, OF_SUITE[suite], f"SEED = {seed}"]
    gin_file.write_text("\n".join(lines) + "\n")
    assert hyla_lm(["train", f"--gin_file={gin_file}", f"--workdir={home / 'run'}"]) == 0
    return home / "run"


def measure(workdir: Path, output: Path) -> int:
    return main([f"--workdir={workdir}", f"--output={output}"])


def test_parts_are_told_by_their_untrained_terms() -> None:
    task = FuzzyLogic(held_out_fraction=0.7, split="published", seed=2).prepare_task(1)
    held_out, trained = task.tables["held_out"], set(task.tables["train"].ravel().tolist())
    parts = by_untrained(held_out, task.missing_terms)
    assert {count: len(table) for count, table in parts.items()} == {0: 25, 1: 20, 2: 1}
    for count, table in parts.items():
        assert all(len(set(terms) - trained) == count for terms in table.tolist())
    assert sorted(np.concatenate(list(parts.values())).tolist()) == sorted(held_out.tolist())


def test_a_run_is_measured_by_part(tmp_path: Path) -> None:
    workdir, output = train(tmp_path, "fuzzy_logic", seed=2), tmp_path / "found.json"
    assert measure(workdir, output) == 0
    found = json.loads(output.read_text())
    assert (found["attention"], found["split"], found["seed"]) == (["hyla"], "published", 2)
    assert (found["step"], found["untrained_terms"]) == (3, [5, 6])
    assert [part["functions"] for part in found["held_out"].values()] == [25, 20, 1]
    assert len({part["r2"] for part in found["held_out"].values()}) == 3
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("suite", "seed", "message"),
    [("fuzzy_logic", 0, "trains every term"), ("sraven", 2, "no fuzzy-logic run")],
)
def test_other_runs_are_refused(
    suite: str, seed: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(train(tmp_path, suite, seed), tmp_path / "found.json") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "found.json").exists()


def test_a_folder_without_a_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(tmp_path, tmp_path / "found.json") == 2
    assert "holds no run" in capsys.readouterr().err
