"""The metric by which the points of a sweep are ranked, and where a run has it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyla_lm.errors import UserError, did_you_mean
from hyla_lm.tools.sweep.runs import Run

LOWEST, HIGHEST = "lowest", "highest"
# How the names of known metrics end, and which value is the best.
ENDINGS = {
    **dict.fromkeys(("bits_per_byte", "loss_nats", "mse", "loss", "seconds"), LOWEST),
    **dict.fromkeys(("accuracy", "r2", "r2_pooled", "per_second", "mfu"), HIGHEST),
}


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
        found = dict(_numbers(summary))
        if self.name not in found:
            meant = did_you_mean(self.name, found) or f": give one of {', '.join(found)}."
            raise UserError(f"--metric={self.name} is not in the summary of these runs{meant}")
        return found[self.name]


def metric_of(runs: Sequence[Run], name: str | None, best: str | None) -> Metric:
    """The metric asked for, or that of the runs' task; raises UserError where there is none."""
    if name is None:
        name = _of_tasks(runs)
    known = next((ENDINGS[ending] for ending in ENDINGS if name.endswith(ending)), None)
    if best is None and known is None:
        raise UserError(
            f"--metric={name} is not known to be best low or high: add --best={LOWEST} or "
            f"--best={HIGHEST}."
        )
    return Metric(name, best or known or LOWEST)


def _of_tasks(runs: Sequence[Run]) -> str:
    tasks = [run.experiment.train.task for run in runs]
    names = {task.ranked_by if task else "" for task in tasks}
    if len(names) > 1 or "" in names:
        raise UserError(
            "--metric is missing: give a number of the runs' summary.json by which the points of "
            "this task are ranked, such as --metric=train/loss."
        )
    return names.pop()


def _numbers(found: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of nested mappings, by their paths."""
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{above}{name}", value if math.isfinite(value) else math.nan
