"""Times of compiled programs: the median of several runs, each waited for, and their quartiles."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

FEWEST = 3


@dataclass(frozen=True)
class Budget:
    """At most `repeats` runs of a program, fewer once they took `seconds`, but at least 3."""

    repeats: int = 20
    seconds: float = 4.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median of `repeats`, and the quartiles."""

    median: float
    lower: float
    upper: float
    repeats: int

    def times(self, count: int) -> "Timing":
        """The time of `count` runs."""
        return Timing(self.median * count, self.lower * count, self.upper * count, self.repeats)

    @property
    def spread(self) -> float:
        """The farther quartile's distance from the median, over the median."""
        return max(self.upper - self.median, self.median - self.lower) / self.median


@dataclass(frozen=True)
class Measurement:
    """A time by group and name, with predictions of it by method, in seconds.

    `work` is what one run does, in FLOP, B or tok (tokens), as `unit` says.
    """

    group: str
    name: str
    timing: Timing
    predicted: Mapping[str, float] = field(default_factory=dict)
    work: float | None = None
    unit: str = ""

    @property
    def ratio(self) -> dict[str, float]:
        """Measured over predicted, by method."""
        return {method: self.timing.median / x for method, x in self.predicted.items() if x}

    @property
    def rate(self) -> float | None:
        """Work a second."""
        return None if self.work is None else self.work / self.timing.median


def timed(run: Callable[[], Any], budget: Budget) -> Timing:
    """The time of `run` until its results are there, without a first run, which compiles."""
    jax.block_until_ready(run())
    seconds: list[float] = []
    while len(seconds) < budget.repeats and (
        len(seconds) < FEWEST or sum(seconds) < budget.seconds
    ):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return timing_of(seconds)


def timing_of(seconds: list[float]) -> Timing:
    """Median and quartiles of the times of at least two runs."""
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, lower, upper, len(seconds))
