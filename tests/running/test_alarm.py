"""What an alarm says may have caused an update that is not finite."""

import math

import pytest

from hyla_lm.logs.alarm import GROWN, Seen, likely_cause

CALM = [Seen(3.0, 0.8)] * 20
RISING = [Seen(3.0, 0.8 * 1.3**i) for i in range(20)]
NAN = Seen(math.nan, math.nan)


@pytest.mark.parametrize(
    ("step", "seen", "history", "rate", "said", "unsaid"),
    [
        (1, NAN, [], 0.0, "first update, and its loss is not finite", "learning_rate"),
        (1, NAN, [], 0.0, "initialisation and the attention kernel (blocked; try", "rows"),
        (1, Seen(5.0, math.inf), [], 0.0, "its backward pass is not finite", "learning_rate"),
        (8, NAN, [], 1e-3, "went on from step 7, whose parameters may be spoiled", "clip_norm"),
        (8, NAN, [], 3e37, "had the learning rate 3e+37, which moves", "older checkpoint"),
        (8, NAN, CALM, 1.0, "lower OptimizerConfig.learning_rate", "rows"),
        (8, Seen(3.0, 0.8), CALM, 1e-3, "It made parameters that are not finite", "rows"),
        (80, NAN, RISING, 1e-3, "rose from 0.8 to 117 over the last 19 steps", "hardware"),
        (80, NAN, RISING, 1e-3, "lower OptimizerConfig.learning_rate or set a lower", "rows"),
        (80, NAN, CALM, 1e-3, "was ordinary (loss 3, gradient norm 0.8): see these", "learning_"),
        (80, NAN, RISING[::-1], 1e-3, "try the same step on other hardware", "clip_norm"),
        (80, NAN, CALM[:1], 1e-3, "try the same step on other hardware", "clip_norm"),
    ],
)
def test_a_cause_is_named_only_where_the_numbers_show_it(
    step: int, seen: Seen, history: list[Seen], rate: float, said: str, unsaid: str
) -> None:
    cause = likely_cause(step, seen, history, rate, "blocked")
    assert said in cause and unsaid not in cause
    assert cause.endswith(".") and "\n" not in cause


@pytest.mark.parametrize(("factor", "is_named"), [(GROWN, True), (GROWN * 0.99, False)])
def test_growth_is_from_the_smallest_norm_that_is_remembered(factor: float, is_named: bool) -> None:
    history = [Seen(3.0, 5.0), Seen(3.0, 1.0), Seen(3.0, 2.0), Seen(3.0, factor)]
    cause = likely_cause(9, NAN, history, 1e-3, "blocked")
    assert ("rose from 1 to 10 over the last 2 steps" in cause) == is_named


def test_nothing_grows_from_a_norm_of_zero() -> None:
    cause = likely_cause(9, NAN, [Seen(3.0, 0.0), Seen(3.0, 0.5)], 1e-3, "blocked")
    assert "ordinary" in cause
