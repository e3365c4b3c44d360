"""Points are ranked by means over seeds; a failed run puts its point behind; how sure that is."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.points import Point
from hyla_lm.tools.sweep.report import (
    as_json,
    sentences,
)
from hyla_lm.tools.sweep.results import Metric, Standing, Summary, metric_of, ranked, summarize
from hyla_lm.tools.sweep.runs import Run
from tests.tools.sweep.conftest import Plan, finish

LOW = Metric("validation/bits_per_byte", "lowest")
HIGH = Metric("validation/held_out_r2", "highest")
ATTENTION = "ModelConfig.attention=hyla,softmax"


def found(runs: list[Run], values: list[Any], metric: Metric = LOW) -> Summary:
    """A number is what a run reached, a text is why it failed, None is a run to come."""
    by_point: dict[Point, list[tuple[int, Any]]] = {}
    for run, value in zip(runs, values, strict=True):
        by_point.setdefault(run.point, []).append((run.seed, value))
    standings = [
        Standing(
            point,
            len(of),
            {seed: value for seed, value in of if isinstance(value, float)},
            {seed: value for seed, value in of if isinstance(value, str)},
        )
        for point, of in by_point.items()
    ]
    return ranked(metric, standings)


def order(summary: Summary) -> list[str]:
    return [one.point.name.removeprefix("learning_rate=") for one in summary.standings]


def test_the_lowest_or_the_highest_mean_is_the_best(planned: Plan) -> None:
    values = [1.0, 1.2, 0.7, 0.9, 2.0, 2.2]
    assert order(found(planned(), values)) == ["0.2", "0.1", "0.3"]
    highest = found(planned(), values, HIGH)
    assert order(highest) == ["0.3", "0.1", "0.2"]
    assert highest.lead is not None and highest.lead.value == pytest.approx(1.0)


def test_failed_runs_put_a_point_behind_and_no_run_last(planned: Plan) -> None:
    summary = found(planned(), [0.1, "step 3: loss nan", 1.0, 1.2, None, None])
    assert order(summary) == ["0.2", "0.1", "0.3"]
    assert found(planned(), ["a", "b", None, None, 2.0, 2.2]).standings[0].values == {
        0: 2.0,
        1: 2.2,
    }


def test_means_have_standard_errors_and_the_lead_welchs_interval(planned: Plan) -> None:
    one, other = [1.0, 1.1, 1.3], [1.5, 1.9, 2.6]
    summary = found(planned(seeds=3), [*other, *one, *[9.0] * 3])
    best, lead = summary.standings[0], summary.lead
    assert (best.mean, best.error) == pytest.approx((sum(one) / 3, stats.sem(one)))
    expected = stats.ttest_ind(other, one, equal_var=False).confidence_interval(0.95)
    assert lead is not None
    assert (lead.low, lead.high) == pytest.approx((expected.low, expected.high))
    assert lead.value == pytest.approx(sum(other) / 3 - sum(one) / 3)


def test_how_sure_the_best_is_stands_in_a_sentence(planned: Plan) -> None:
    sure = sentences(found(planned(), [1.0, 1.01, 2.0, 2.01, 3.0, 3.01]))[-1]
    assert "worse by 1.0000" in sure and sure.endswith("by these seeds the order is no chance.")
    unsure = sentences(found(planned(), [1.0, 2.0, 1.1, 2.1, 3.0, 3.0]))[-1]
    assert "worse by 0.1000" in unsure and "it includes 0, so the order may be chance" in unsure
    assert "may be chance" in sentences(found(planned(), [1.0] * 6))[-1]
    half_known = found(planned(), [1.0, 1.0, 3.0, 3.2, 9.0, 9.0]).lead
    assert half_known is not None and math.isfinite(half_known.high)


def test_summary_json_has_all(planned: Plan) -> None:
    content = json.loads(as_json(found(planned(), [1.0, 1.2, 0.7, 0.9, 2.0, "nan"])))
    assert (content["best"], content["second"]) == ("learning_rate=0.2", "learning_rate=0.1")
    assert content["second_is_worse_by"]["value"] == pytest.approx(0.3)
    last = content["points"][-1]
    assert last["settings"] == {"OptimizerConfig.learning_rate": "0.3"}
    assert (last["runs"], last["by_seed"], last["failures"]) == (2, {"0": 2.0}, {"1": "nan"})


def test_a_run_has_its_metric_and_seconds_from_its_summary(planned: Plan) -> None:
    run, other = planned("TrainConfig.steps=10")
    finish(run, 1.5)
    [standing] = summarize(LOW, [run, other], {other.name: "killed"}).standings
    assert (standing.values, standing.failures) == ({0: 1.5}, {1: "killed"})
    assert (standing.seconds, standing.planned) == (2.0, 2)
    with pytest.raises(UserError, match="did you mean validation/bits_per_byte?"):
        summarize(Metric("validation/bits_per_bite", "lowest"), [run], {})
    finish(run, math.nan)
    [standing] = summarize(LOW, [run], {}).standings
    assert standing.failures == {0: "its validation/bits_per_byte is not finite"}
    Path(run.workdir, "summary.json").write_text("[1]")
    with pytest.raises(UserError, match="summary.json is damaged"):
        summarize(LOW, [run], {})


def test_the_task_says_what_ranks(planned: Plan) -> None:
    assert metric_of(planned(), None, None) == LOW
    assert metric_of(planned(), "train/accuracy", None).best == "highest"
    assert metric_of(planned(), "train/accuracy", "lowest").best == "lowest"
