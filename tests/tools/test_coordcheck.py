"""A small coordinate check: muP keeps what the standard parametrisation lets grow."""

import json
from pathlib import Path

import pytest

from hyla_lm.tools.coordcheck import MUP, STANDARD, at_width, family
from tests.bad_input.conftest import status_of
from tests.model.small_model import small

GIN = """
TrainConfig.task = @LanguageModel()
TrainConfig.batch_size = 4
LanguageModel.vocab_size = 32
LanguageModel.sequence_length = 8
LanguageModel.logit_chunk = 8
ModelConfig.num_layers = 1
ModelConfig.model_dim = 32
ModelConfig.num_heads = 8
ModelConfig.head_dim = 4
ModelConfig.mlp_dim = 64
OptimizerConfig.learning_rate = 1e-2
OptimizerConfig.warmup_steps = 1
"""


def test_heads_grow_in_number_or_in_size() -> None:
    config = small(model_dim=16, num_heads=2, head_dim=4, mlp_dim=24)
    more, larger = at_width(config, 32, "heads"), at_width(config, 32, "head_dim")
    assert (more.num_heads, more.head_dim, more.value_size, more.mlp_dim) == (4, 4, 4, 48)
    assert (larger.num_heads, larger.head_dim, larger.value_size) == (2, 8, 8)


def test_the_base_of_mup_is_the_first_width_or_the_configs() -> None:
    widths = (32, 64)
    bases = [m.base_width for m in family(small(), widths, "heads", MUP)]
    own = [m.base_width for m in family(small(base_width=16), widths, "heads", MUP)]
    none = [m.base_width for m in family(small(base_width=16), widths, "heads", STANDARD)]
    sizes = [m.base_head_dim for m in family(small(), widths, "head_dim", MUP)]
    assert (bases, own, none, sizes) == ([32, 32], [16, 16], [None, None], [8, 8])


def test_mup_keeps_what_the_standard_parametrisation_lets_grow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gin").write_text(GIN)
    line = f"coordcheck --gin_file={tmp_path}/model.gin --random_tokens --widths=32,256 --steps=3"
    line += f" --seeds=1 --variants=hyla --output={tmp_path}/out --bound=0.001"
    assert status_of(*line.split()) == 1
    out = capsys.readouterr().out
    assert "mup:" in out and "not within 0.001 of flat" in out
    report = json.loads((tmp_path / "out" / "coordcheck.json").read_text())
    assert (tmp_path / "out" / "coordcheck.png").stat().st_size > 1000
    found = {
        (c["parametrisation"], c["quantity"], c["part"], step): slope
        for c in report["curves"]
        for step, slope in zip(c["steps"], c["slopes"], strict=True)
    }
    assert found["standard", "value units 0", "size", 0] == pytest.approx(0.5, abs=0.15)
    assert found["standard", "embedding", "size", 0] == pytest.approx(-0.5, abs=0.05)
    for name in ("feedforward 0", "value units 0", "attention 0"):
        assert found["standard", name, "change", 3] > 0.4, name
        assert abs(found["mup", name, "change", 3]) < 0.25, name
    for name in ("embedding", "value units 0", "attention 0", "residual 0"):
        assert abs(found["mup", name, "size", 0]) < 0.15, name
