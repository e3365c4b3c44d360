"""The analysis of latent codes from a run's folder to its report, codes and pictures."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyla_lm.cli.main import main

pytestmark = pytest.mark.full
SMALL = """
include "gin/evals/fuzzy_logic_strict.gin"
TrainConfig.steps = 4
TrainConfig.batch_size = 8
TrainConfig.eval_every = 4
ModelConfig.num_layers = 2
ModelConfig.model_dim = 8
ModelConfig.num_heads = 3
ModelConfig.mlp_dim = 8
OptimizerConfig.warmup_steps = 2
FuzzyLogic.evaluation_examples = 8
SEQUENCE_LENGTH = 8
"""


def look(workdir: Path, *arguments: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The report and the codes that one call of the command leaves."""
    sizes = ["--examples=300", "--tsne_examples=50"]
    assert main(["evals", "look", f"--workdir={workdir}", *sizes, *arguments]) == 0
    out = workdir / "latent_code"
    assert not list(out.glob("*.partial"))
    for picture in out.glob("*.png"):
        assert picture.read_bytes().startswith(b"\x89PNG")
    with np.load(out / "codes.npz") as codes:
        return json.loads((out / "report.json").read_text()), dict(codes)


def test_fuzzy_logic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gin_file, workdir = tmp_path / "run.gin", tmp_path / "run"
    gin_file.write_text(SMALL)
    assert main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]) == 0
    report, codes = look(workdir)
    assert (report["task"], report["step"], report["attention"]) == ("fuzzy logic", 4, ["hyla"])
    assert set(report["decoding"]) == {"in_distribution", "held_out"}
    for layers in report["decoding"].values():
        assert set(layers) == {"0", "1", "all"}
    assert set(report["decoding"]["held_out"]["0"]["terms"]) == {str(t) for t in range(12)}
    # The last token's code in layer 0 is of its own inputs alone, so it cannot tell the function.
    assert abs(report["decoding"]["held_out"]["0"]["mean"]["auc"] - 0.5) < 0.1
    assert len(report["groups"]) == 66
    assert [units["units"] for units in report["value_units"]] == [2, 2]
    assert codes["held_out/code_NxBxC"].shape == (2, 300, 3)
    assert codes["held_out/terms"].shape == (300, 2)
    assert {path.name for path in (workdir / "latent_code").glob("*.png")} == {
        "decoding.png",
        "similarity.png",
        "tsne.png",
    }
    assert "held_out: terms, mean" in capsys.readouterr().out
    assert look(workdir)[0] == report
    assert look(workdir, "--seed=1")[0]["decoding"] != report["decoding"]


def test_language_model(tiny_gin: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    arguments = ["train", f"--gin_file={tiny_gin}", f"--workdir={workdir}"]
    assert main([*arguments, "--gin.TrainConfig.steps=4"]) == 0
    report, codes = look(workdir)
    assert report["task"] == "language model" and report["code_size"] == 2
    count = report["queries"]
    assert count == 300 or count == 8 * len(np.unique(codes["row_Q"]))
    assert codes["key_code_NxQxJxH"].shape == (1, count, 4, 2)
    visible = codes["key_position_NxQxJ"] <= codes["position_Q"][None, :, None]
    assert visible.all()
    hidden = codes["key_position_NxQxJ"] < 0
    assert not codes["key_code_NxQxJxH"][hidden].any() and not hidden.all()
    # At the first place of a row there is no key but itself.
    first = codes["position_Q"] == 0
    np.testing.assert_array_equal(
        codes["key_code_NxQxJxH"][:, first, 0], codes["self_code_NxQxH"][:, first]
    )
    assert codes["piece_V"].shape == (320,)
