"""Sweeps that train nothing, and what a finished run leaves of itself."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.ending import DONE
from hyla_lm.tools.sweep.jobs import job_name
from hyla_lm.tools.sweep.points import grid
from hyla_lm.tools.sweep.runner import Ended
from hyla_lm.tools.sweep.runs import Base, Run, plan

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
def plain_gin(tmp_path: Path) -> Path:
    path = tmp_path / "plain.gin"
    path.write_text(GIN)
    return path


@pytest.fixture
def planned(plain_gin: Path, tmp_path: Path) -> Plan:
    """The runs of a sweep of learning rates, or of what is given, in the folder `sweep`."""

    def make(
        *over: str,
        points: tuple[list[str], ...] = (),
        seeds: int = 2,
        bindings: tuple[str, ...] = (),
    ) -> list[Run]:
        base = Base(str(tmp_path / "sweep"), (str(plain_gin),), bindings, seeds)
        return plan(base, grid(over or (() if points else RATES), points))

    return make


def finish(run: Run, value: float, **more: float) -> Ended:
    """Leaves what a finished run leaves of itself."""
    folder = Path(run.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.gin").write_text(run.experiment.text)
    reached = {"bits_per_byte": value, **more}
    speed = {"tokens_seen": 1280, "tokens_per_second": 640.0}
    summary = {"step": run.experiment.train.steps, "validation": reached, **speed}
    (folder / "summary.json").write_text(json.dumps(summary))
    return Ended(DONE)


def jobs_of(runs: list[Run]) -> list[str]:
    """The launcher's names of runs."""
    return [job_name("hyla", run) for run in runs]
