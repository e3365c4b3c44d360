"""The command on one run, and on all runs of an experiment: files, tables, and what is skipped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyla_lm.cli.main import main
from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.results import Result
from hyla_lm.evals.latent_codes import command
from hyla_lm.evals.latent_codes.samples import Choices

SMALL = """
include "gin/evals/fuzzy_logic_strict.gin"
TrainConfig.steps = 2
TrainConfig.batch_size = 8
ModelConfig.num_layers = 2
ModelConfig.model_dim = 8
ModelConfig.num_heads = 3
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 1
FuzzyLogic.evaluation_examples = 8
SEQUENCE_LENGTH = 8
"""
POINT = {"learning_rate": 1e-3, "weight_decay": 0.1, "warmup_steps": 100}
SCORES = {"mean": {"auc": 0.6, "f1": 0.3, "always_f1": 0.2}}
CODES = {
    "step": 10,
    "decoding": {name: {"0": SCORES, "all": SCORES} for name in ("in_distribution", "held_out")},
    "effective_rank": {"held_out": [2.0]},
    "code_size": 8,
}


@pytest.mark.full
def test_a_run_is_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gin_file, workdir = tmp_path / "run.gin", tmp_path / "run"
    gin_file.write_text(SMALL)
    assert main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]) == 0
    assert main(["evals", "latent_codes", str(workdir), "--examples=300"]) == 0
    out = workdir / "latent_codes"
    assert {path.name for path in out.iterdir()} == {"report.json", "codes.npz", "tsne.png"}
    report = json.loads((out / "report.json").read_text())
    for layers in report["decoding"].values():
        assert set(layers) == {"0", "1", "all"}
    of_layer = report["decoding"]["held_out"]["0"]
    assert set(of_layer["terms"]) == {str(t) for t in range(12)}
    # The last token's code in layer 0 is of its own inputs alone, so it cannot tell the function.
    assert abs(of_layer["mean"]["auc"] - 0.5) < 0.1
    with np.load(out / "codes.npz") as codes:
        assert codes["held_out/code_NxBxC"].shape == (2, 300, 3)
        assert codes["held_out/terms"].shape == (300, 2)
    assert "held_out, layer all: f1" in capsys.readouterr().out


def test_each_run_of_an_experiment_is_looked_at_once_with_the_same_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Path] = []

    def look_at(workdir: Path, choices: Choices, bindings: list[str]) -> dict[str, Any]:
        looks.append(workdir)
        return CODES

    monkeypatch.setattr(command, "look_at", look_at)
    place = ("fuzzy_logic", "paper", "table_a1", "hyla")
    made_on = {"device": "cpu", "jax": "0.10.2", "git_revision": None}
    for seed, diverged_at in ((0, None), (1, None), (2, 3)):
        summary = {"train": {}, "validation": {}, "diverged_at": diverged_at, **made_on}
        run = Result(*place, seed, POINT, "covering", 10, 1.0, [], "c", summary)
        results.write(tmp_path / "results", run)
    arguments = ["evals", "latent_codes", str(tmp_path)]
    assert main([*arguments, "--fixed=query"]) == 0
    assert [path.name for path in looks] == ["seed0", "seed1"]
    assert main([*arguments, "--fixed=query"]) == 0
    assert len(looks) == 2
    assert main(arguments) == main([*arguments, "--fixed=query", "--seed=1"]) == 0
    assert len(looks) == 6
    paths = (tmp_path / "latent_codes").glob("*query.json")
    assert [json.loads(path.read_text())["choices"]["seed"] for path in paths] == [1, 1]
    report = (tmp_path / "report.md").read_text()
    assert report.count("| HYLA | fixed") == 2
    assert f"hyla-lm evals latent_codes {tmp_path} --fixed=query --seed=1" in report
