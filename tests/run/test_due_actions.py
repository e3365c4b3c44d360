"""What a run does between its steps, and how a resumed run does it again."""

from pathlib import Path
from typing import Any

import pytest

from hyla_lm.config.experiment import CheckpointConfig, Experiment, LogConfig, TrainConfig
from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.model.config import ModelConfig
from hyla_lm.optim import OptimizerConfig
from hyla_lm.parallel.mesh import MeshConfig
from hyla_lm.run import evaluation
from hyla_lm.run.due_actions import DUE_ACTIONS
from hyla_lm.run.evaluation import evaluate
from hyla_lm.signals import signals
from tests.run_lines import measured
from tests.tiny_runs import train

pytestmark = pytest.mark.usefixtures("programs_once")

EXPERIMENT = Experiment(
    TrainConfig(steps=10, eval_every=4),
    ModelConfig(),
    OptimizerConfig(),
    MeshConfig(),
    CheckpointConfig(every=3),
    LogConfig(),
    text="",
)


def due(step: int) -> list[str]:
    return [action.do.__name__ for action in DUE_ACTIONS if action.is_due(EXPERIMENT, step)]


def test_what_is_due_follows_from_the_step() -> None:
    named = {step: due(step)[1:] for step in range(11)}
    assert {due(step)[0] for step in range(11)} == {"check_background"}
    assert named.pop(10) == ["save", "evaluate", "write_summary"]
    assert {step for step, names in named.items() if "save" in names} == {3, 6, 9}
    assert {step for step, names in named.items() if "evaluate" in names} == {4, 8}
    assert all(names[-1] == "stop_if_asked" for names in named.values())


def test_a_stop_in_any_evaluation_loses_and_doubles_nothing(
    tiny_gin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run evaluates again, so the next is the second."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(tiny_gin, whole) == 0
    for step, number in ((4, 1), (8, 2), (12, 2)):
        calls: list[int] = []

        def asked(*arguments: Any, calls=calls, number=number) -> Any:
            calls.append(1)
            if len(calls) == number:
                signals().is_interrupted = True
            return evaluate(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(evaluation, "evaluate", asked)
            assert train(tiny_gin, stopped) == EXIT_STATUS
        assert (stopped / "checkpoints" / str(step)).is_dir()
        assert not (stopped / "summary.json").exists()
    assert train(tiny_gin, stopped) == 0
    assert measured(stopped) == measured(whole)
