"""The experiments are the paper's: rows, published values and sizes."""

import re
from pathlib import Path

import pytest

from hyla_lm.attention.attend import VARIANTS
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.evals.experiments.paper import BENCHMARKS, PRESETS
from hyla_lm.evals.experiments.runner import PlannedRun, Request, plan

PAPER = Path(__file__).parents[3].parent / "shared" / "paper" / "attention_as_a_hypernetwork.md"
TRAINED = [
    (suite, name)
    for suite, benchmark in BENCHMARKS.items()
    for name, e in benchmark.experiments.items()
    if not e.rows[0].measured
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
    assert [run.row for run in runs] == list(BENCHMARKS[suite].experiments[experiment].rows)
    assert len({run.folder for run in runs}) == len(runs)
    found = [configured(run, suite, preset) for run in runs]
    assert all(found.count(one) == 1 for one in found)
    for one in found:
        length = one.train.task.prepare_task(1).sequence_length  # type: ignore
        assert one.model.relative_buckets == one.model.relative_max_distance == length


@pytest.mark.parametrize("suite", BENCHMARKS)
def test_table_a1_has_every_variant_and_three_with_experts(suite: str, tmp_path: Path) -> None:
    models = [configured(run, suite).model for run in planned(suite, "table_a1", tmp_path)]
    dense = [model.attention for model in models if model.feedforward == "gelu"]
    sparse = [model for model in models if model.feedforward == "moe"]
    of_the_paper = [name for name, spec in VARIANTS.items() if spec.pair_network is None]
    assert sorted(dense) == sorted(of_the_paper)
    assert [model.attention for model in sparse] == ["softmax", "linear", "hyla"]
    assert {(model.num_experts, model.experts_per_token) for model in sparse} == {(5, 2)}


def test_table_a1_is_as_published() -> None:
    if not PAPER.is_file():
        pytest.skip("the paper's text is not beside this checkout")
    number = r"\$([\d.]+) \\pm ([\d.]+)\$"
    lines = re.findall(rf"^(.+)\t{number}\t{number}$", PAPER.read_text(), re.MULTILINE)
    assert len(lines) == 14
    for line, fuzzy, sraven in zip(
        lines,
        BENCHMARKS["fuzzy_logic"].experiments["table_a1"].rows,
        BENCHMARKS["sraven"].experiments["table_a1"].rows,
        strict=True,
    ):
        title = re.sub(r"[$\\]", "", line[0]).replace(" - ", " − ").replace("–", "−")
        assert title == fuzzy.label == sraven.label
        assert tuple(map(float, line[1:3])) == fuzzy.published
        assert tuple(map(float, line[3:])) == sraven.published


def test_examples_are_steps(tmp_path: Path) -> None:
    runs = planned("sraven", "depth", tmp_path)
    assert [run.steps * 128 for run in runs[:3]] == [10_000_000, 20_000_000, 40_000_000]
    short = plan(Request("sraven", str(tmp_path), "depth", seeds=(0,), steps=15625))
    assert [run.steps for run in short[:3]] == [7812, 15625, 31250]
    assert {run.share for run in short} == {0.1}


def test_fewer_features_have_no_published_split(tmp_path: Path) -> None:
    splits = {run.row.setting.x: run.split for run in planned("sraven", "features", tmp_path)}
    assert splits == {2: "covering", 3: "covering", 4: "published"}
