"""The results of a sweep: its points, ranked by the mean of a metric over seeds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from scipy.special import stdtrit

from hyla_lm.errors import UserError, did_you_mean
from hyla_lm.tools.sweep.points import Point
from hyla_lm.tools.sweep.runs import Run

LOWEST, HIGHEST = "lowest", "highest"
# How the names of known metrics end, and which value is the best.
ENDINGS = {
    **dict.fromkeys(("bits_per_byte", "loss_nats", "mse", "loss", "seconds"), LOWEST),
    **dict.fromkeys(("accuracy", "r2", "r2_pooled", "per_second", "mfu"), HIGHEST),
}
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """A number of a run's summary.json, such as validation/bits_per_byte; `best` is which wins."""

    name: str
    best: str

    @property
    def sign(self) -> int:
        """What turns the best value into the lowest."""
        return 1 if self.best == LOWEST else -1

    def of(self, summary: Mapping[str, Any]) -> float:
        """Its value in a summary; raises UserError for a summary without it."""
        numbers = dict(_numbers(summary))
        if self.name not in numbers:
            meant = did_you_mean(self.name, numbers) or f": give one of {', '.join(numbers)}."
            raise UserError(f"--metric={self.name} is not in the summary of these runs{meant}")
        return numbers[self.name]


def metric_of(runs: Sequence[Run], name: str | None, best: str | None) -> Metric:
    """The metric of that name, or that of the runs' task; raises UserError where there is none."""
    if name is None:
        tasks = [run.experiment.train.task for run in runs]
        names = {task.ranked_by if task else "" for task in tasks}
        if len(names) > 1 or "" in names:
            raise UserError(
                "--metric is missing: give a number of the runs' summary.json by which the points "
                "of this task are ranked, such as --metric=train/loss."
            )
        name = names.pop()
    best = best or next((ENDINGS[ending] for ending in ENDINGS if name.endswith(ending)), None)
    if best is None:
        raise UserError(
            f"--metric={name} is not known to be best low or high: add --best={LOWEST} or "
            f"--best={HIGHEST}."
        )
    return Metric(name, best)


def _numbers(summary: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested mappings, by their paths."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value if math.isfinite(value) else math.nan


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
        seconds = [result.seconds for result in self.results if result.seconds is not None]
        return mean(seconds) if seconds else None


@dataclass(frozen=True)
class Difference:
    """By how much a point is worse than the best: the difference of means, its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """The points of a sweep, the best first; points with failed runs stand behind the others."""

    metric: Metric
    standings: tuple[Standing, ...]

    @property
    def results(self) -> list[Result]:
        return [result for standing in self.standings for result in standing.results]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.failure]

    @property
    def finished(self) -> int:
        return sum(result.value is not None for result in self.results)

    @property
    def best(self) -> Standing | None:
        """The best point; None while no run is finished."""
        first = self.standings[0]
        return first if first.values else None

    @property
    def second(self) -> Standing | None:
        """The point behind the best; None where no other has a finished run."""
        return next((one for one in self.standings[1:] if one.values), None)

    @property
    def lead(self) -> Difference | None:
        """By how much the second is worse than the best; None where seeds do not say."""
        if self.best is None or self.second is None:
            return None
        return difference(self.metric, self.best, self.second)


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


def summarize(metric: Metric, runs: Sequence[Run], failures: Mapping[str, str]) -> Summary:
    """Ranks the points of all runs of a sweep, by what the runs left and why some failed."""
    return ranked(metric, [result_of(run, metric, failures) for run in runs])


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


def ranked(metric: Metric, results: Sequence[Result]) -> Summary:
    """The points of results: by failed runs first, then by the mean."""
    by_point: dict[Point, list[Result]] = {}
    for result in results:
        by_point.setdefault(result.run.point, []).append(result)
    standings = [Standing(point, tuple(of)) for point, of in by_point.items()]

    def rank(one: Standing) -> tuple[bool, int, float]:
        return one.mean is None, len(one.failures), metric.sign * (one.mean or 0.0)

    return Summary(metric, tuple(sorted(standings, key=rank)))
