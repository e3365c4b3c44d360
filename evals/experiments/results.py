"""One JSON a finished run, and the means over seeds that tables and figures are made of."""

import json
import math
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from etils import epath

from evals.experiments.paper import SUITES
from evals.experiments.rows import Column, Experiment, Row, Suite
from hyla_lm.config import UserError
from hyla_lm.input.files import write_retrying

SHORT = {"learning_rate": "lr", "weight_decay": "wd", "warmup_steps": "warmup"}


@dataclass(frozen=True)
class Result:
    """A finished run: what it was, and its summary.json.

    `point` is of the optimizer's grid, `share` that of the published schedule, `bindings` what was
    given beside preset, row, point, seed and steps.
    """

    suite: str
    preset: str
    experiment: str
    row: str
    seed: int
    point: Mapping[str, float]
    split: str
    steps: int
    share: float
    bindings: Sequence[str]
    command: str
    summary: Mapping[str, Any]

    @property
    def name(self) -> str:
        place = (self.suite, self.preset, self.experiment, self.row)
        return "-".join([*place, point_name(self.point), f"seed{self.seed}"])

    @property
    def folder(self) -> Path:
        """Of the run, in the working folder."""
        place = Path(self.suite, self.preset, self.experiment, self.row)
        return place / point_name(self.point) / f"seed{self.seed}"

    def figure(self, column: Column) -> float | None:
        """A figure of the summary, scaled; None where the run diverged or has no such figure."""
        part, name = column.path.split("/")
        value = self.summary[part].get(name)
        is_sound = value is not None and self.summary.get("diverged_at") is None
        return column.scale * value if is_sound else None


def point_name(point: Mapping[str, float]) -> str:
    """A short name of optimizer settings, for folders and tables."""
    return "_".join(f"{SHORT[name]}{value:g}" for name, value in point.items())


def write(folder: Path, result: Result) -> None:
    """Writes a result whole, under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(asdict(result), indent=1) + "\n"
    write_retrying(epath.Path(folder / f"{result.name}.json"), text.encode())


def read(folder: Path) -> list[Result]:
    """The results of a folder; raises UserError where there are none or one is of nothing known."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"{folder} has no results: train first, with python -m evals SUITE.")
    return [_read(path) for path in paths]


def _read(path: Path) -> Result:
    try:
        result = Result(**json.loads(path.read_text()))
        rows = SUITES[result.suite].experiments[result.experiment].rows
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} is not the result of a run ({error!r}): move it away.") from error
    if result.row not in [row.name for row in rows]:
        raise UserError(f"{path} is of a row {result.row!r} that is not known: move it away.")
    return result


@dataclass(frozen=True)
class Mean:
    """Mean and standard error over `count` seeds; one seed has no error."""

    value: float
    error: float | None
    count: int


def mean_of(values: Sequence[float]) -> Mean | None:
    """None of no values."""
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(mean(values), error, len(values))


@dataclass(frozen=True)
class Point:
    """The runs of a row at one point of the grid, a seed each."""

    runs: tuple[Result, ...]

    @property
    def name(self) -> str:
        return point_name(self.runs[0].point)

    def mean(self, column: Column) -> Mean | None:
        figures = [run.figure(column) for run in self.runs]
        return mean_of([figure for figure in figures if figure is not None])

    def rank(self, column: Column) -> tuple[int, float]:
        """Points with more seeds that did not diverge come first, then those of a higher mean."""
        found = self.mean(column)
        return (found.count, found.value) if found else (0, 0.0)


@dataclass(frozen=True)
class Section:
    """Runs that one table compares: of an experiment, under one preset, split and schedule."""

    runs: tuple[Result, ...]

    @property
    def suite(self) -> Suite:
        return SUITES[self.runs[0].suite]

    @property
    def experiment(self) -> Experiment:
        return self.suite.experiments[self.runs[0].experiment]

    @property
    def name(self) -> str:
        """Of its files."""
        first = self.runs[0]
        name = f"{first.suite}-{first.preset}-{first.experiment}"
        shortened = "" if first.share == 1 else f"-{100 * first.share:.3g}_percent"
        changes = zlib.crc32("\n".join(first.bindings).encode())
        return name + shortened + (f"-{changes:08x}" if first.bindings else "")

    @property
    def has_grid(self) -> bool:
        return any(len(points) > 1 for _, points in self.rows)

    @property
    def rows(self) -> list[tuple[Row, list[Point]]]:
        """The rows that have runs, in the experiment's order, with their points."""
        of_row = grouped(self.runs, lambda run: run.row)
        return [
            (row, _points(of_row[row.name])) for row in self.experiment.rows if row.name in of_row
        ]

    def best(self, column: Column) -> list[tuple[Row, Point]]:
        """Each row at its best point by a figure."""
        return [(row, max(points, key=lambda p: p.rank(column))) for row, points in self.rows]


def sections(results: Iterable[Result]) -> list[Section]:
    """Results by what may be compared."""

    def compared(run: Result) -> Hashable:
        return (run.suite, run.preset, run.experiment, run.share, *run.bindings)

    return [Section(runs) for runs in grouped(results, compared).values()]


def _points(runs: Iterable[Result]) -> list[Point]:
    return [Point(group) for group in grouped(runs, lambda run: point_name(run.point)).values()]


def grouped(
    runs: Iterable[Result], key: Callable[[Result], Hashable]
) -> dict[Hashable, tuple[Result, ...]]:
    """Runs by a key, in the order in which keys first come."""
    groups: dict[Hashable, tuple[Result, ...]] = {}
    for run in runs:
        groups[key(run)] = (*groups.get(key(run), ()), run)
    return groups
