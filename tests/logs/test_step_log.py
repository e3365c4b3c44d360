"""The speed of a run, by a clock that the test sets."""

import pytest

from hyla_lm.logs.step_log import RunClock


class Clock:
    """Moves when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_speed_leaves_out_the_first_step_traces_and_what_is_between_steps() -> None:
    clock = Clock()
    times = RunClock(clock)

    def step(count: int) -> None:
        times.restart()
        for _ in range(count):
            clock.now += 2
            times.step_ended()

    step(1)
    assert times.speed() is None
    with times.measured("evaluation_seconds"):
        clock.now += 50
    step(2)
    with times.waiting_for_data():
        clock.now += 1
    times.step_ended()
    times.is_timed = False
    step(4)
    times.is_timed = True
    assert times.speed() == pytest.approx((5 / 3, 1 / 5))
    assert times.speed() is None, "each step counts once"
    assert times.noted() == {"perf/evaluation_seconds": 50}
    assert times.noted() == {}, "what was noted is written once"
