"""What a sweep found: its points, ranked by the mean of a metric over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from scipy.special import stdtrit

from hyla_lm.tools.sweep.metric import Metric
from hyla_lm.tools.sweep.points import Point
from hyla_lm.tools.sweep.runs import Run

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Result:
    """A run of a sweep: its metric and training seconds if it is finished, or why it failed."""

    run: Run
    value: float | None = None
    seconds: float | None = None
    failure: str = ""


@dataclass(frozen=True)
class Standing:
    """The runs of a point."""

    point: Point
    results: tuple[Result, ...]

    @property
    def values(self) -> list[float]:
        """The metric of each finished run."""
        return [result.value for result in self.results if result.value is not None]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.failure]

    @property
    def mean(self) -> float | None:
        return mean(self.values) if self.values else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for fewer than two seeds."""
        values = self.values
        return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None

    @property
    def seconds(self) -> float | None:
        """The mean seconds of training steps."""
        found = [result.seconds for result in self.results if result.seconds is not None]
        return mean(found) if found else None


@dataclass(frozen=True)
class Summary:
    """The points of a sweep, the best first; points with failed runs stand behind the others."""

    metric: Metric
    standings: tuple[Standing, ...]

    @property
    def finished(self) -> int:
        return sum(len(standing.values) for standing in self.standings)

    @property
    def planned(self) -> int:
        return sum(len(standing.results) for standing in self.standings)

    @property
    def failures(self) -> list[Result]:
        return [result for standing in self.standings for result in standing.failures]

    @property
    def best(self) -> Standing | None:
        """The best point; None while no run is finished."""
        first = self.standings[0]
        return first if first.values else None

    @property
    def second(self) -> Standing | None:
        """The point behind the best; None where no other has a finished run."""
        others = [standing for standing in self.standings[1:] if standing.values]
        return others[0] if others else None

    @property
    def lead(self) -> "Difference | None":
        """By how much the second is worse than the best; None where seeds do not tell."""
        if self.best is None or self.second is None:
            return None
        return difference(self.metric, self.best, self.second)


@dataclass(frozen=True)
class Difference:
    """By how much a point is worse than the best: the difference of means, its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def may_be_chance(self) -> bool:
        return self.low <= 0


def difference(metric: Metric, best: Standing, other: Standing) -> Difference | None:
    """The difference by Welch's t, which lets spreads differ; None where a point has one seed."""
    if best.mean is None or other.mean is None or best.error is None or other.error is None:
        return None
    value = metric.sign * (other.mean - best.mean)
    parts = [(one.error**2, len(one.values) - 1) for one in (best, other) if one.error]
    if not parts:
        return Difference(value, value, value)
    squared = sum(part for part, _ in parts)
    freedom = squared**2 / sum(part**2 / count for part, count in parts)
    half = math.sqrt(squared) * float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
    return Difference(value, value - half, value + half)


def summarize(metric: Metric, results: Sequence[Result]) -> Summary:
    """Ranks the points of all runs of a sweep."""
    of_point: dict[str, list[Result]] = {}
    for result in results:
        of_point.setdefault(result.run.point.name, []).append(result)
    standings = [Standing(found[0].run.point, tuple(found)) for found in of_point.values()]
    return Summary(metric, tuple(sorted(standings, key=lambda one: _rank(metric, one))))


def result_of(run: Run, metric: Metric, failures: Mapping[str, str]) -> Result:
    """What is known of a run; raises UserError if it is finished and has no such metric."""
    summary = run.summary()
    if not summary:
        return Result(run, failure=failures.get(run.name, ""))
    value, speed = metric.of(summary), summary.get("tokens_per_second")
    seconds = summary["tokens_seen"] / speed if speed else None
    if math.isnan(value):
        return Result(run, None, seconds, f"its {metric.name} is not finite")
    return Result(run, value, seconds)


def _rank(metric: Metric, standing: Standing) -> tuple[bool, int, float]:
    value = standing.mean
    signed = 0.0 if value is None else metric.sign * value
    return value is None, len(standing.failures), signed
