"""The experiments are the paper's: rows, published values and sizes."""

from pathlib import Path

import pytest

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.evals.experiments.benchmarks import BENCHMARKS, PRESETS
from hyla_lm.evals.experiments.runner import PlannedRun, Request, plan

TRAINED = [
    (suite, name)
    for suite, benchmark in BENCHMARKS.items()
    if benchmark.is_published
    for name in benchmark.experiments
]


def planned(suite: str, experiment: str, folder: Path, preset: str = "paper") -> list[PlannedRun]:
    return plan(Request(suite, str(folder), experiment, preset, seeds=(0,)))


def configured(run: PlannedRun, suite: str, preset: str = "paper") -> Experiment:
    return read_experiment([Request(suite, "", preset=preset).gin_file], run.bindings)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("suite", "experiment"), TRAINED)
def test_every_row_can_be_run_and_is_another(
    suite: str, experiment: str, preset: str, tmp_path: Path
) -> None:
    runs = planned(suite, experiment, tmp_path, preset)
    rows = BENCHMARKS[suite].experiments[experiment].rows
    assert [run.result.row for run in runs] == [row.name for row in rows]
    assert len({run.folder for run in runs}) == len(runs)
    found = [configured(run, suite, preset) for run in runs]
    assert all(found.count(one) == 1 for one in found)
    for one in found:
        length = one.train.task.prepare_task(1).sequence_length  # type: ignore
        assert one.model.relative_buckets == one.model.relative_max_distance == length


def test_examples_are_steps(tmp_path: Path) -> None:
    runs = planned("sraven", "depth", tmp_path)
    assert [run.result.steps * 128 for run in runs[:3]] == [10_000_000, 20_000_000, 40_000_000]
    short = plan(Request("sraven", str(tmp_path), "depth", seeds=(0,), steps=15625))
    assert [run.result.steps for run in short[:3]] == [7812, 15625, 31250]
    assert {run.result.share for run in short} == {0.1}
