"""What a run does between its steps, and how a resumed run does it again."""

import json
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


def due(experiment: Experiment, step: int) -> list[str]:
    return [action.do.__name__ for action in DUE_ACTIONS if action.is_due(experiment, step)]


def test_what_is_due_follows_from_the_step() -> None:
    named = {step: due(EXPERIMENT, step)[1:] for step in range(11)}
    assert {due(EXPERIMENT, step)[0] for step in range(11)} == {"check_background"}
    assert named.pop(10) == ["save", "evaluate", "write_summary"]
    assert {step for step, names in named.items() if "save" in names} == {3, 6, 9}
    assert {step for step, names in named.items() if "evaluate" in names} == {4, 8}
    assert all(names[-1] == "stop_if_asked" for names in named.values())


def test_the_last_step_is_evaluated_once_on_all_rows(
    tiny_gin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counted(
        program: Any, params: Any, step: int, shard: Any, is_final: bool, *rest: Any
    ) -> Any:
        batches = program.task.evaluation_sets(shard, is_final)[""]
        sizes.append(sum(int((batch["row"] >= 0).sum()) for batch in batches))
        return evaluate(program, params, step, shard, is_final, *rest)

    monkeypatch.setattr(evaluation, "evaluate", counted)
    workdir = tmp_path / "run"
    assert train(tiny_gin, workdir, "LanguageModel.validation_rows = 8") == 0
    assert sizes[:2] == [8, 8] and len(sizes) == 3 and sizes[2] > 8
    found = json.loads((workdir / "summary.json").read_text())["validation"]
    last = measured(workdir, "validation/")[-1]
    assert last == {"step": 12} | {f"validation/{name}": value for name, value in found.items()}


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
