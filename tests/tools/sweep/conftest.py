"""Sweeps that train nothing, and what a finished run leaves of itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.tools.sweep.runs import Run, grid, plan

GIN = """
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 10
TrainConfig.batch_size = 8
LanguageModel.sequence_length = 16
OptimizerConfig.warmup_steps = 1
"""
RATES = ("OptimizerConfig.learning_rate=0.1,0.2,0.3",)
Plan = Callable[..., list[Run]]


@pytest.fixture
def planned(tmp_path: Path) -> Plan:
    """The runs of a sweep of learning rates, or of what is given, in the folder `sweep`."""
    gin = tmp_path / "plain.gin"
    gin.write_text(GIN)

    def make(*over: str, seeds: int = 2, bindings: tuple[str, ...] = ()) -> list[Run]:
        points = grid(over or RATES)
        return plan(str(tmp_path / "sweep"), [str(gin)], bindings, seeds, points)

    return make


def finish(run: Run, value: float) -> None:
    """Leaves what a finished run leaves of itself."""
    folder = Path(run.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(run.experiment.text)
    reached = {"step": run.experiment.train.steps, "validation": {"bits_per_byte": value}}
    (folder / "summary.json").write_text(json.dumps(reached))
