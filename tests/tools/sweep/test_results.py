"""Points are ranked by means over seeds; a failed run puts its point behind; how sure that is."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.results import Metric, Standing, metric_of, rank, text
from tests.tools.sweep.conftest import Plan, finish

LOW = Metric("validation/bits_per_byte", "lowest")


def ranked(
    planned: Plan, values: list[Any], best: str = "lowest", seeds: int = 2
) -> list[Standing]:
    """A number is what a run reached, a text is why it failed, None is a run to come."""
    failures = {}
    runs = planned(seeds=seeds)
    for run, value in zip(runs, values, strict=True):
        if isinstance(value, float):
            finish(run, value)
        elif value is not None:
            failures[run.name] = value
    return rank(Metric(LOW.name, best), runs, failures)


def order(standings: list[Standing]) -> list[str]:
    return [one.point.name.removeprefix("learning_rate=") for one in standings]


def test_the_lowest_or_the_highest_mean_is_the_best(planned: Plan) -> None:
    values = [1.0, 1.2, 0.7, 0.9, 2.0, 2.2]
    assert order(ranked(planned, values)) == ["0.2", "0.1", "0.3"]
    highest = ranked(planned, values, "highest")
    assert order(highest) == ["0.3", "0.1", "0.2"]
    assert "learning_rate=0.1 is worse by 1.0000" in text(Metric(LOW.name, "highest"), highest)


def test_failed_runs_put_a_point_behind_and_no_run_last(planned: Plan) -> None:
    standings = ranked(planned, [0.1, "step 3: loss nan", 1.0, math.nan, None, None])
    assert order(standings) == ["0.1", "0.2", "0.3"]
    assert standings[0].failures == {1: "step 3: loss nan"}
    assert standings[1].failures == {1: "its validation/bits_per_byte is not finite"}


def test_means_have_standard_errors(planned: Plan) -> None:
    one, other = [1.0, 1.1, 1.3], [1.5, 1.9, 2.6]
    standings = ranked(planned, [*other, *one, *[9.0] * 3], seeds=3)
    assert (standings[0].mean, standings[0].error) == pytest.approx((sum(one) / 3, stats.sem(one)))


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ([1.0, 1.01, 2.0, 2.01, 3.0, 3.01], "by these seeds the order is no chance."),
        ([1.0, 2.0, 1.1, 2.1, 3.0, 3.0], "so the order may be chance, and more --seeds tell."),
        ([1.0, None, 3.0, 3.2, 9.0, 9.0], "more --seeds do."),
    ],
)
def test_how_sure_the_best_is_stands_in_a_sentence(
    planned: Plan, values: list[Any], end: str
) -> None:
    assert text(LOW, ranked(planned, values)).endswith(end)


def test_a_metric_comes_from_a_whole_summary(planned: Plan) -> None:
    [run] = planned("TrainConfig.steps=10", seeds=1)
    finish(run, 1.5)
    with pytest.raises(UserError, match="did you mean validation/bits_per_byte?"):
        rank(Metric("validation/bits_per_bite", "lowest"), [run], {})
    Path(run.workdir, "summary.json").write_text("[1]")
    with pytest.raises(UserError, match="summary.json is damaged"):
        rank(LOW, [run], {})


def test_the_task_says_what_ranks(planned: Plan) -> None:
    assert metric_of(planned(), None, None) == LOW
    assert metric_of(planned(), "train/accuracy", None).best == "highest"
    assert metric_of(planned(), "train/accuracy", "lowest").best == "lowest"
