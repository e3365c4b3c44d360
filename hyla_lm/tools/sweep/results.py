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
            yield f"{above}{name}", value


@dataclass(frozen=True)
class Standing:
    """A point: by seed the metric of finished runs, and why others failed; seconds of training.

    `seconds` are those of the training steps, the mean over finished runs; None where none is.
    """

    point: Point
    planned: int
    values: Mapping[int, float]
    failures: Mapping[int, str]
    seconds: float | None = None

    @property
    def mean(self) -> float | None:
        return mean(self.values.values()) if self.values else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for fewer than two seeds."""
        count = len(self.values)
        return stdev(self.values.values()) / math.sqrt(count) if count > 1 else None


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
    standings: Sequence[Standing]

    @property
    def planned(self) -> int:
        return sum(one.planned for one in self.standings)

    @property
    def finished(self) -> int:
        return sum(len(one.values) for one in self.standings)

    @property
    def failed(self) -> int:
        return sum(len(one.failures) for one in self.standings)

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
    """Ranks the points of runs, by what these left and why some failed.

    Raises UserError for a finished run that has no such metric.
    """
    by_point: dict[Point, list[Run]] = {}
    for run in runs:
        by_point.setdefault(run.point, []).append(run)
    standings = [_standing(metric, point, of, failures) for point, of in by_point.items()]
    return ranked(metric, standings)


def _standing(
    metric: Metric, point: Point, runs: Sequence[Run], reasons: Mapping[str, str]
) -> Standing:
    values, failures, seconds = {}, {}, []
    for run in runs:
        summary = run.summary()
        if summary:
            value, speed = metric.of(summary), summary.get("tokens_per_second")
            seconds += [summary["tokens_seen"] / speed] if speed else []
            if math.isfinite(value):
                values[run.seed] = value
            else:
                failures[run.seed] = f"its {metric.name} is not finite"
        elif run.name in reasons:
            failures[run.seed] = reasons[run.name]
    return Standing(point, len(runs), values, failures, mean(seconds) if seconds else None)


def ranked(metric: Metric, standings: Sequence[Standing]) -> Summary:
    """Points with failed runs stand behind the others, those without a finished run last."""

    def rank(one: Standing) -> tuple[bool, int, float]:
        return one.mean is None, len(one.failures), metric.sign * (one.mean or 0.0)

    return Summary(metric, sorted(standings, key=rank))
