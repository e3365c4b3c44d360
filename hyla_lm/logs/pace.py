"""How long a run still takes: its steps at the speed of late, its duties as the last time.

A duty that is still to come and has not been seen is not counted, and the time is said to be "at
least" that. The first evaluation compiles, so until the second the time is rather too long. The
last one, of whole sets, counts as the others.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from hyla_lm.config.experiment import Experiment

# What a new measurement of steps counts for: after 10 of them the first counts for 3 %.
SHARE_OF_NEW = 0.3
MINUTE, HOUR = 60, 3600


class Pace:
    """Measures steps and duties of a run of so many steps.

    `every` names each duty with the steps between two of its times; all are due at the end.
    """

    def __init__(
        self,
        steps: int,
        every: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._steps, self._every, self._clock = steps, every, clock
        self._step_seconds: float | None = None
        self._duty_seconds: dict[str, float] = {}

    def stepped(self, seconds: float) -> None:
        """Steps took so long each."""
        before = seconds if self._step_seconds is None else self._step_seconds
        self._step_seconds = before + SHARE_OF_NEW * (seconds - before)

    @contextmanager
    def measured(self, duty: str) -> Iterator[None]:
        """Measures what the block does as a duty; one without an interval is not kept."""
        begun = self._clock()
        yield
        if duty in self._every:
            self._duty_seconds[duty] = self._clock() - begun

    def left(self, step: int) -> str:
        """The time from a step, before its duties, to the end: "5 min 20 s left"; "" if unknown."""
        if self._step_seconds is None:
            return ""
        times = {duty: times_left(every, step, self._steps) for duty, every in self._every.items()}
        unseen = [duty for duty, count in times.items() if count and duty not in self._duty_seconds]
        of_duties = sum(self._duty_seconds.get(duty, 0) * count for duty, count in times.items())
        seconds = (self._steps - step) * self._step_seconds + of_duties
        if unseen and step == self._steps:
            return ""
        return f"{'at least ' if unseen else ''}{duration(seconds)} left"


def intervals(experiment: Experiment) -> dict[str, int]:
    """The steps between duties that take long, by the names in hyla_lm.run.duties."""
    e, last = experiment, experiment.train.steps
    found = {"save": e.checkpoint.every, "evaluate": e.train.eval_every or last}
    if e.train.suites:
        found["train_suites"] = min(suite.every or last for suite in e.train.suites)
    if e.canary.every:
        found["compare_kernels"] = e.canary.every
    if e.log.details_every:
        found["look_inside"] = e.log.details_every
    return found


def times_left(every: int, step: int, last: int) -> int:
    """How often something is due from this step on: at multiples of `every` and at the last."""
    return -(-last // every) - (step - 1) // every


def duration(seconds: float) -> str:
    """A time as a person says it: "12 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < MINUTE:
        return f"{whole} s"
    if whole < HOUR:
        return f"{whole // MINUTE} min {whole % MINUTE} s"
    return f"{whole // HOUR:,} h {whole % HOUR // MINUTE} min"
