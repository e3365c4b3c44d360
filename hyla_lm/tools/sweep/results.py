"""The results of a sweep: its points, ranked by the mean of a metric over seeds."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from hyla_lm.errors import UserError, did_you_mean
from hyla_lm.tools.output import plain
from hyla_lm.tools.sweep.runs import Point, Run

LOWEST, HIGHEST = "lowest", "highest"
# How the names of metrics end of which the highest value is the best.
HIGHEST_ENDINGS = ("accuracy", "r2", "r2_pooled", "per_second", "mfu")


class Metric(NamedTuple):
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
    return Metric(name, best or (HIGHEST if name.endswith(HIGHEST_ENDINGS) else LOWEST))


def _numbers(summary: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested mappings, by their paths."""
    for name, value in summary.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value


@dataclass(frozen=True)
class Standing:
    """A point: by seed the metric of finished runs, and why others failed."""

    point: Point
    planned: int
    values: Mapping[int, float]
    failures: Mapping[int, str]

    @property
    def mean(self) -> float | None:
        return mean(self.values.values()) if self.values else None

    @property
    def error(self) -> float | None:
        """The standard error of the mean; None for fewer than two seeds."""
        count = len(self.values)
        return stdev(self.values.values()) / math.sqrt(count) if count > 1 else None


def rank(metric: Metric, runs: Sequence[Run], failures: Mapping[str, str]) -> list[Standing]:
    """The points of runs, the best first, by what these left and why some failed.

    Points with failed runs stand behind the others, those without a finished run last. Raises
    UserError for a finished run that has no such metric.
    """
    by_point: dict[Point, list[Run]] = {}
    for run in runs:
        by_point.setdefault(run.point, []).append(run)
    standings = [_standing(metric, point, of, failures) for point, of in by_point.items()]

    def place(one: Standing) -> tuple[bool, int, float]:
        return one.mean is None, len(one.failures), metric.sign * (one.mean or 0.0)

    return sorted(standings, key=place)


def _standing(
    metric: Metric, point: Point, runs: Sequence[Run], reasons: Mapping[str, str]
) -> Standing:
    values, failures = {}, {}
    for run in runs:
        summary = run.summary()
        value = metric.of(summary) if summary else None
        if value is not None and math.isfinite(value):
            values[run.seed] = value
        elif value is not None:
            failures[run.seed] = f"its {metric.name} is not finite"
        elif run.name in reasons:
            failures[run.seed] = reasons[run.name]
    return Standing(point, len(runs), values, failures)


def text(metric: Metric, standings: Sequence[Standing]) -> str:
    """A table of the points, the best first, why runs failed, and how sure the best point is."""
    rows = [["point", f"{metric.name} ({metric.best} is best)", "seeds"]]
    for one in standings:
        error = "" if one.error is None else f" ± {one.error:.4f}"
        mean = "–" if one.mean is None else f"{one.mean:.4f}{error}"
        rows.append([one.point.name, mean, f"{len(one.values)} of {one.planned}"])
    lines = plain(rows)
    for one in standings:
        for seed, reason in one.failures.items():
            lines.append(f"{one.point.name}/seed={seed} failed: {reason}")
    known = [one for one in standings if one.values]
    if len(known) > 1:
        lines += ["", f"{known[1].point.name} is {_certainty(metric, known)}"]
    return "\n".join(lines)


def _certainty(metric: Metric, standings: Sequence[Standing]) -> str:
    """How sure it is, from the seeds, that the best point is better than the second."""
    from hyla_lm.tools.compare.intervals import welch  # scipy takes a second

    best, second = ([metric.sign * x for x in one.values.values()] for one in standings[:2])
    found = welch(second, best)
    apart = f"worse by {mean(second) - mean(best):.4f}"
    if found is None:
        return f"{apart}: one seed does not say how sure that is: more --seeds do."
    apart += f", 95 % interval {found.low:.4f} to {found.high:.4f}"
    if found.low <= 0:
        return f"{apart}: it includes 0, so the order may be chance, and more --seeds tell."
    return f"{apart}: by these seeds the order is no chance."


def as_json(metric: Metric, standings: Sequence[Standing]) -> str:
    """The content of sweep.json."""
    points = [
        {
            "point": one.point.name,
            "settings": dict(one.point.settings),
            "mean": one.mean,
            "standard_error": one.error,
            "runs": one.planned,
            "by_seed": one.values,
            "failures": one.failures,
        }
        for one in standings
    ]
    content = {"metric": metric.name, "best_is": metric.best, "points": points}
    return json.dumps(content, indent=1) + "\n"
