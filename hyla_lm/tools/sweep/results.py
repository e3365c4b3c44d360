"""The results of a sweep: its points, ranked by the mean of a metric over seeds."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any, NamedTuple

from hyla_lm.errors import UserError, did_you_mean
from hyla_lm.storage import as_path
from hyla_lm.tools.output import plain
from hyla_lm.tools.sweep.runs import Point, Run

LOWEST, HIGHEST = "lowest", "highest"
# How the names of known metrics end, and which value is the best.
ENDINGS = {
    **dict.fromkeys(("bits_per_byte", "loss_nats", "mse", "loss", "seconds"), LOWEST),
    **dict.fromkeys(("accuracy", "r2", "r2_pooled", "per_second", "mfu"), HIGHEST),
}
CONFIDENCE = 0.95
NONE = "–"


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


def lead(metric: Metric, standings: Sequence[Standing]) -> tuple[float, float, float] | None:
    """By how much the second point is worse than the best, with the 95 % interval.

    The interval is Welch's, which lets spreads differ. None where a point has fewer than two seeds.
    """
    from scipy.stats import ttest_ind  # takes a second

    values = [[metric.sign * x for x in one.values.values()] for one in standings[:2]]
    if len(values) < 2 or min(map(len, values)) < 2:
        return None
    best, second = values
    difference = mean(second) - mean(best)
    if stdev(best) == stdev(second) == 0:
        return difference, difference, difference
    found = ttest_ind(second, best, equal_var=False).confidence_interval(CONFIDENCE)
    return difference, float(found.low), float(found.high)


def sentences(metric: Metric, standings: Sequence[Standing]) -> list[str]:
    """How much is done, why runs failed, what the best point is and how sure that is."""
    finished, failed, planned = counts(standings)
    of_failed = f", {failed} failed" if failed else ""
    lines = [f"{finished} of {planned} runs are finished{of_failed}."]
    for one in standings:
        for seed, reason in one.failures.items():
            lines.append(f"{one.point.name}/seed={seed} failed: {reason}")
    known = [one for one in standings if one.values]
    if known:
        lines.append(f"Best: {known[0].point.name}, {metric.name} {_mean(known[0])}.")
    if len(known) > 1:
        certainty = _certainty(lead(metric, known))
        lines.append(f"Second: {known[1].point.name}, {_mean(known[1])}; {certainty}")
    return lines


def _certainty(found: tuple[float, float, float] | None) -> str:
    """How sure it is, from the seeds, that the best point is better than the second."""
    if found is None:
        return "one seed does not say how sure that order is: more --seeds do."
    value, low, high = found
    apart = f"worse by {value:.4f}, 95 % interval {low:.4f} to {high:.4f}"
    if low <= 0:
        return f"{apart}: it includes 0, so the order may be chance, and more --seeds tell."
    return f"{apart}: by these seeds the order is no chance."


def counts(standings: Sequence[Standing]) -> tuple[int, int, int]:
    """How many runs are finished, failed and planned."""
    finished = sum(len(one.values) for one in standings)
    failed = sum(len(one.failures) for one in standings)
    return finished, failed, sum(one.planned for one in standings)


def table(metric: Metric, standings: Sequence[Standing]) -> list[str]:
    """A head and a row for each point, the best first."""
    rows = [["point", metric.name, "seeds"]]
    for one in standings:
        rows.append([one.point.name, _mean(one), f"{len(one.values)} of {one.planned}"])
    return plain(rows)


def _mean(standing: Standing) -> str:
    """The mean with its standard error, if it has one."""
    if standing.mean is None:
        return NONE
    error = "" if standing.error is None else f" ± {standing.error:.4f}"
    return f"{standing.mean:.4f}{error}"


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


def listing(runs: Sequence[Run]) -> list[str]:
    """A line for each run that a sweep would train, and the sum of all."""
    rows = [("folder", "steps", "state")]
    for run in runs:
        begun = (as_path(run.workdir) / "config.gin").exists()
        state = "finished" if run.summary() else "begun" if begun else "to do"
        rows.append((run.name, f"{run.experiment.train.steps:,}", state))
    points, steps = len({run.point for run in runs}), sum(r.experiment.train.steps for r in runs)
    total = f"{points} points x {len(runs) // points} seeds = {len(runs)} runs, {steps:,} steps"
    return [*plain(rows), total]
