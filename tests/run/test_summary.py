"""What a summary takes from a run's lines of metrics."""

from typing import Any

import pytest

from hyla_lm.run.summary import last_training_metrics, seconds_per_step


def window(step: int, loss: float, seconds: float | None = None) -> dict[str, Any]:
    line = {"step": step, "train/loss": loss, "optim/learning_rate": 0.1}
    return line if seconds is None else {**line, "perf/step_seconds": seconds}


LINES = [
    window(10, 3.0),  # its only timed step compiled, so it has no speed
    {"step": 10, "validation/loss": 2.5},
    window(20, 2.0, seconds=0.5),
    window(25, 1.0, seconds=2.0),
]


def test_a_step_takes_the_mean_of_the_timed_windows() -> None:
    assert seconds_per_step(LINES) == pytest.approx((0.5 + 2.0) / 2)
    assert seconds_per_step(LINES[:2]) == seconds_per_step([]) == 0


def test_the_training_metrics_are_those_of_the_last_window() -> None:
    assert last_training_metrics(LINES) == {"loss": 1.0}
    assert last_training_metrics([]) == {}
