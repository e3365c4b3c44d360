"""The time left that a person is told, by a clock of the test's own."""

import pytest

from hyla_lm.logs.pace import Pace, duration, times_left


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now

    def duty(self, pace: Pace, name: str, seconds: float) -> None:
        with pace.measured(name):
            self.now += seconds


def test_the_time_left_counts_steps_and_the_duties_still_to_come() -> None:
    clock = Clock()
    pace = Pace(1000, {"evaluate": 100, "save": 300}, clock)
    assert pace.left(100) == ""
    pace.stepped(2.0)
    assert pace.left(100) == "at least 30 min 0 s left", "no evaluation was seen yet"
    assert pace.left(1000) == "", "all that is left was never seen"
    clock.duty(pace, "evaluate", 60)
    assert pace.left(200) == "at least 35 min 40 s left", "9 evaluations; no save was seen"
    clock.duty(pace, "save", 10)
    assert pace.left(400) == f"{duration(600 * 2 + 7 * 60 + 3 * 10)} left"
    assert pace.left(1000) == f"{duration(60 + 10)} left", "the last duties are still to come"


def test_a_slow_start_is_forgotten() -> None:
    clock = Clock()
    pace = Pace(1000, {"evaluate": 500}, clock)
    pace.stepped(30.0)
    clock.duty(pace, "evaluate", 300)  # it compiles
    clock.duty(pace, "evaluate", 10)
    for _ in range(30):
        pace.stepped(1.0)
    assert pace.left(901) == f"{duration(99 + 10)} left"


def test_what_has_no_interval_is_not_counted() -> None:
    clock = Clock()
    pace = Pace(10, {}, clock)
    pace.stepped(1.0)
    clock.duty(pace, "finish", 100)
    assert pace.left(5) == "5 s left"


@pytest.mark.parametrize(("every", "last"), [(4, 12), (5, 12), (20, 12), (1, 3)])
def test_times_left_are_those_of_the_duties(every: int, last: int) -> None:
    due = [step for step in range(1, last + 1) if step % every == 0 or step == last]
    for step in range(1, last + 1):
        assert times_left(every, step, last) == sum(later >= step for later in due)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599, "59 min 59 s"), (7500, "2 h 5 min")],
)
def test_times_are_said_in_hours_minutes_and_seconds(seconds: float, said: str) -> None:
    assert duration(seconds) == said
