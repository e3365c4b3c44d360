"""Results of finished runs, one JSON each, and their means over seeds for tables and figures."""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.evals.experiments.benchmarks import BENCHMARKS
from hyla_lm.evals.experiments.rows import Benchmark, Column, Experiment, Row
from hyla_lm.evals.tables import Mean, grouped, mean_of, write_json

SHORT = {"learning_rate": "lr", "weight_decay": "wd", "warmup_steps": "warmup"}


@dataclass(frozen=True)
class Result:
    """A finished run: what it was, and its summary.json.

    `point` has the optimizer settings of the grid, `share` is the share of the published schedule,
    `bindings` were given beside preset, row, point, seed and steps.
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
    def folder(self) -> Path:
        """The folder of the run, below the working folder."""
        place = Path(self.suite, self.preset, self.experiment, self.row)
        return place / point_name(self.point) / f"seed{self.seed}"

    @property
    def name(self) -> str:
        return "-".join(self.folder.parts)

    def metric(self, column: Column) -> float | None:
        """A metric of the summary, scaled; None where the run diverged or lacks it."""
        part, name = column.path.split("/")
        value = self.summary[part].get(name)
        is_sound = value is not None and self.summary.get("diverged_at") is None
        return column.scale * value if is_sound else None


def point_name(point: Mapping[str, float]) -> str:
    """A short name of optimizer settings, for folders and tables."""
    return "_".join(f"{SHORT[name]}{value:g}" for name, value in point.items())


def write(folder: Path, result: Result) -> None:
    """Writes a result to a file of its name."""
    write_json(folder / f"{result.name}.json", asdict(result))


def read(folder: Path) -> list[Result]:
    """The results of a folder; raises UserError without any, or for a file that is no result."""
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise UserError(f"{folder} has no results: train first, with hyla-lm evals SUITE.")
    return [_read(path) for path in paths]


def _read(path: Path) -> Result:
    try:
        result = Result(**json.loads(path.read_text()))
        rows = BENCHMARKS[result.suite].experiments[result.experiment].rows
        next(row for row in rows if row.name == result.row)
    except (ValueError, TypeError, KeyError, StopIteration) as error:
        raise UserError(f"{path} is not the result of a known run ({error!r}): move it.") from error
    return result


@dataclass(frozen=True)
class Point:
    """The runs of a row at one point of the grid, a seed each."""

    runs: Sequence[Result]

    @property
    def name(self) -> str:
        return point_name(self.runs[0].point)

    def mean(self, column: Column) -> Mean | None:
        return mean_of(run.metric(column) for run in self.runs)

    def rank(self, column: Column) -> tuple[int, float]:
        """Sorts points: by seeds that did not diverge, then by the mean."""
        mean = self.mean(column)
        return (mean.count, mean.value) if mean else (0, 0.0)


@dataclass(frozen=True)
class Section:
    """The runs of one table: one experiment under one preset, split and schedule."""

    runs: Sequence[Result]

    @property
    def benchmark(self) -> Benchmark:
        return BENCHMARKS[self.runs[0].suite]

    @property
    def experiment(self) -> Experiment:
        return self.benchmark.experiments[self.runs[0].experiment]

    @property
    def name(self) -> str:
        """The stem of the names of its files."""
        first = self.runs[0]
        name = f"{first.suite}-{first.preset}-{first.experiment}"
        shortened = "" if first.share == 1 else f"-{100 * first.share:.3g}_percent"
        changes = zlib.crc32("\n".join(first.bindings).encode())
        return name + shortened + (f"-{changes:08x}" if first.bindings else "")

    @property
    def has_grid(self) -> bool:
        return any(len(points) > 1 for _, points in self.rows)

    @cached_property
    def rows(self) -> list[tuple[Row, list[Point]]]:
        """The rows that have runs, in the experiment's order, with their points."""
        of_row = {runs[0].row: runs for runs in grouped(self.runs, lambda run: run.row)}
        return [
            (row, [Point(p) for p in grouped(of_row[row.name], lambda run: point_name(run.point))])
            for row in self.experiment.rows
            if row.name in of_row
        ]

    def best(self, column: Column) -> list[tuple[Row, Point]]:
        """Each row with its best point by a metric."""
        return [(row, max(points, key=lambda p: p.rank(column))) for row, points in self.rows]


def sections(results: Iterable[Result]) -> list[Section]:
    """One section for each set of results that may be compared."""
    compared = grouped(
        results, lambda run: (run.suite, run.preset, run.experiment, run.share, *run.bindings)
    )
    return [Section(runs) for runs in compared]
