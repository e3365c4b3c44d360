"""The plans in docs/plans fit the configs, and pure data parallelism keeps its promises."""

import json
from pathlib import Path
from typing import Any

import pytest

from docs import make_plans
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.gin_files import GinFile, Written
from hyla_lm.config.read_experiment import read_experiment

ROOT = Path(__file__).parents[2]


CASES = [(name, slice_) for slice_ in make_plans.TOPOLOGIES for name in make_plans.CONFIGS]


def planned(name: str, topology: str) -> dict[str, Any]:
    return json.loads(make_plans.path_of(name, topology).read_text())


def without_data(file: GinFile) -> Experiment:
    """What a plan depends on: it reads no data, and is of a step that measures no norms."""
    unmeasured = [binding.replace("=", " = ") for binding in make_plans.UNMEASURED]
    return read_experiment([file], ["LanguageModel.data = None", *unmeasured])


@pytest.mark.parametrize("case", make_plans.CASES, ids="-".join)
def test_plans_rest_on_the_measurements_of_today(case: tuple[str, str], tmp_path: Path) -> None:
    path = make_plans.path_of(*case)
    again = tmp_path / path.name
    again.write_bytes(path.read_bytes())
    make_plans.predict_again(again)
    assert json.loads(again.read_text()) == json.loads(path.read_text())


def test_the_page_has_the_tables() -> None:
    page = make_plans.PAGE.read_text()
    assert make_plans.with_tables(page) == page


@pytest.mark.parametrize("name", make_plans.CONFIGS)
def test_plans_are_of_the_configs_as_they_are(name: str) -> None:
    today = without_data(str(ROOT / "gin" / f"c4_50m_{name}.gin"))
    for topology in make_plans.TOPOLOGIES:
        path = make_plans.path_of(name, topology)
        assert without_data(Written(str(path), planned(name, topology)["config"])) == today


@pytest.mark.parametrize(("name", "topology"), CASES)
def test_a_data_parallel_step_fits_and_only_reduces_gradients(name: str, topology: str) -> None:
    plan = planned(name, topology)
    assert plan["fits"] and plan["topology"] == topology
    assert plan["mesh"] == {"replica": 1, "data": plan["chips"], "fsdp": 1, "model": 1}
    assert {(x["kind"], *x["axes"]) for x in plan["collectives"]} == {("all-reduce", "data")}
    shapes = [shape for x in plan["collectives"] for shape in x["shapes"]]
    assert all(shape.count(512) < 2 for shape in shapes if len(shape) > 2)  # T x T
    reduced = sum(x["bytes"] * x["times"] for x in plan["collectives"])
    # Every gradient once in float32, and some sums of metrics.
    assert 4 * plan["parameters"] < reduced < 4 * plan["parameters"] + 256


def test_under_fsdp_each_parameter_is_gathered_and_reduced_once_by_bytes() -> None:
    plan = planned(*make_plans.LARGE)
    today = without_data(str(ROOT / "gin" / "c4_1b_hyla.gin"))
    path = make_plans.path_of(*make_plans.LARGE)
    assert without_data(Written(str(path), plan["config"])) == today
    assert plan["fits"] and plan["mesh"] == {"replica": 1, "data": 16, "fsdp": 16, "model": 1}
    matrices, small = plan["parameters"], 2**20
    moved = {
        kind: sum(x["bytes"] * x["times"] for x in plan["collectives"] if x["kind"] == kind)
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
    }
    # Gathered in bfloat16, reduced in float32; over the other axis goes the part of a chip alone.
    assert moved["all-gather"] == pytest.approx(2 * matrices, abs=small)
    assert moved["reduce-scatter"] == pytest.approx(4 * matrices, abs=small)
    assert moved["all-reduce"] == pytest.approx(4 * matrices / plan["mesh"]["fsdp"], abs=small)
