"""A small coordinate check: muP keeps what the standard parametrisation lets grow."""

import json
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from hyla_lm.tools.coordcheck import MUP, STANDARD, family
from tests.bad_input.conftest import status_of
from tests.model.small_model import small
from tests.tiny_runs import write_gin

WIDER = """
ModelConfig.num_layers = 1
ModelConfig.model_dim = 32
ModelConfig.num_heads = 8
ModelConfig.head_dim = 4
ModelConfig.mlp_dim = 64
OptimizerConfig.learning_rate = 1e-2
"""


def test_heads_grow_and_the_base_of_mup_is_the_first_width_or_the_configs() -> None:
    config = small(model_dim=16, num_heads=2, head_dim=4, mlp_dim=24)
    first, last = family(config, (32, 64), MUP)
    assert (last.num_heads, last.head_dim, last.mlp_dim) == (8, 4, 96)
    assert (first.base_width, last.base_width, last.base_head_dim) == (32, 32, 4)
    own = small(model_dim=16, num_heads=2, head_dim=4, mlp_dim=24, base_width=16)
    bases = [m.base_width for kind in (MUP, STANDARD) for m in family(own, (32, 64), kind)]
    assert bases == [16, 16, None, None]


def test_mup_keeps_what_the_standard_parametrisation_lets_grow(
    tiny_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gin_file = write_gin(tmp_path, tiny_rows, WIDER)
    line = f"coordcheck --gin_file={gin_file} --widths=32,256 --steps=3"
    line += f" --seeds=1 --output={tmp_path}/out --bound=0.001"
    assert status_of(*line.split()) == 1
    out = capsys.readouterr().out
    assert "judged slopes are not within 0.001 of flat" in out
    report = json.loads((tmp_path / "out" / "coordcheck.json").read_text())
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
