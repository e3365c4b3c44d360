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
include "gin/evals/fuzzy_logic_paper.gin"
SEED = 2
SEQUENCE_LENGTH = 8
FuzzyLogic.evaluation_examples = 8
TrainConfig.steps = 3
TrainConfig.batch_size = 8
ModelConfig.num_layers = 1
ModelConfig.model_dim = 8
ModelConfig.num_heads = 2
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 1
"""


def test_parts_are_told_by_their_untrained_terms() -> None:
    task = FuzzyLogic(held_out_fraction=0.7, split="published", seed=2).prepare_task(1)
    held_out, trained = task.tables["held_out"], set(task.tables["train"].ravel().tolist())
    parts = by_untrained(held_out, task.missing_terms)
    assert {count: len(table) for count, table in parts.items()} == {0: 25, 1: 20, 2: 1}
    for count, table in parts.items():
        assert all(len(set(terms) - trained) == count for terms in table.tolist())
    assert sorted(np.concatenate(list(parts.values())).tolist()) == sorted(held_out.tolist())


def test_a_run_is_measured_by_part(tmp_path: Path) -> None:
    gin_file, workdir, output = (tmp_path / name for name in ("run.gin", "run", "found.json"))
    gin_file.write_text(SMALL)
    assert hyla_lm(["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]) == 0
    assert main([f"--workdir={workdir}", f"--output={output}"]) == 0
    found = json.loads(output.read_text())
    assert (found["attention"], found["split"], found["seed"]) == (["hyla"], "published", 2)
    assert (found["step"], found["untrained_terms"]) == (3, [5, 6])
    assert [part["functions"] for part in found["held_out"].values()] == [25, 20, 1]
    assert len({part["r2"] for part in found["held_out"].values()}) == 3
    assert not list(tmp_path.glob("*.partial"))
