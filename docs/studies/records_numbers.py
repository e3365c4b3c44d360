"""What the runs of docs/results/records say of each method and size: means, intervals, budgets."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy.stats import linregress

from docs.studies.records import (
    METHODS,
    SEEDS,
    SIZES,
    STEPS,
    TUNING_SEED,
    Result,
    of_method,
    read_all,
    tuning_of,
)
from hyla_lm.errors import UserError
from hyla_lm.tools.compare.budget import LN2
from hyla_lm.tools.compare.intervals import Interval, differences, holm, welch

BASELINE = "softmax"
FIT_SIZES = 3
BUDGETS = ("tokens", "flops", "seconds")


@dataclass(frozen=True)
class Cell:
    """A method at a size: its tuning runs, and those of its seeds whose numbers stayed finite."""

    size: str
    method: str
    tuning: Sequence[Result]
    runs: Sequence[Result]
    step_seconds: float

    @cached_property
    def bits(self) -> float:
        return float(np.mean([run["bits_per_byte"] for run in self.runs]))

    @cached_property
    def error(self) -> float | None:
        """The standard error of the mean over seeds; None for one."""
        each = [run["bits_per_byte"] for run in self.runs]
        return float(np.std(each, ddof=1) / len(each) ** 0.5) if len(each) > 1 else None

    @cached_property
    def flops(self) -> float:
        """FLOPs of a step, by the formula of perf/mfu."""
        return self.runs[0]["flops_per_token"] * self.tokens

    @property
    def tokens(self) -> int:
        return self.runs[0]["tokens_per_step"]

    def mean(self, name: str) -> float:
        return float(np.mean([run[name] for run in self.runs]))

    def of_step(self, at: str) -> float:
        """What a step spends of a budget."""
        return {"tokens": self.tokens, "flops": self.flops, "seconds": self.step_seconds}[at]

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps of the evaluations, and the mean over seeds of their bits per byte."""
        points_RxEx2 = np.array([run["curve"] for run in self.runs])
        return points_RxEx2[0, :, 0], points_RxEx2[:, :, 1].mean(axis=0)

    def bits_at(self, at: str, budget: float) -> float:
        """Bits per byte when so much was spent, linear between two evaluations."""
        steps_E, bits_E = self.curve()
        return float(np.interp(budget, steps_E * self.of_step(at), bits_E))


@dataclass(frozen=True)
class Pair:
    """Bits per byte of a method less those of the baseline, and p adjusted for the size's pairs.

    The interval over documents is of these very runs, that over seeds of these documents.
    """

    method: str
    value: float
    over_documents: Interval
    over_seeds: Interval | None
    p: float


@dataclass(frozen=True)
class Scaling:
    """Bits per byte of a method fall as parameters to the power of -exponent."""

    method: str
    exponent: float
    error: float


def cells_of(folder: Path, size: str) -> list[Cell]:
    """The methods of a size of which a seed has ended."""
    results, times = read_all(folder), folder / f"{size}_step_time.json"
    milliseconds = json.loads(times.read_text())["cpu_milliseconds"] if times.exists() else {}
    cells = []
    for method in METHODS:
        ended = [r for r in of_method(results, size, method) if r["seed"] != TUNING_SEED]
        sound = [r for r in ended if r["bits_per_byte"] is not None]
        if sound:
            tuning = tuning_of(results, size, method)
            cells.append(Cell(size, method, tuning, sound, milliseconds[method] / 1000))
    return cells


def less(cells: Sequence[Cell], method: str, other: str) -> list[float]:
    """Bits per byte of a method less those of another, for each seed that both have."""
    runs = {(cell.method, run["seed"]): run["bits_per_byte"] for cell in cells for run in cell.runs}
    seeds = [seed for seed in SEEDS if (method, seed) in runs and (other, seed) in runs]
    return [runs[method, seed] - runs[other, seed] for seed in seeds]


def ended(folder: Path, size: str) -> tuple[int, int]:
    """How many runs of a size have ended: of tuning, and of seeds."""
    of_size = [r for r in read_all(folder) if r["size"] == size and r["method"] in METHODS]
    found = [r["seed"] == TUNING_SEED for r in of_size]
    return sum(found), len(found) - sum(found)


def sizes_begun(folder: Path) -> list[str]:
    return [size for size in SIZES if any(ended(folder, size))]


def scalings(cells: Sequence[Cell]) -> list[Scaling]:
    """Least squares on logarithms of all runs; methods with three sizes or more."""
    found = []
    for method in METHODS:
        runs = [run for cell in cells if cell.method == method for run in cell.runs]
        x_R, y_R = np.log([[run["parameters"], run["bits_per_byte"]] for run in runs] or [[1, 1]]).T
        if len(set(x_R)) >= FIT_SIZES:
            fit = linregress(x_R, y_R)
            found.append(Scaling(method, -float(fit.slope), float(fit.stderr)))
    return found


def budget(cells: Sequence[Cell], at: str) -> float:
    """The largest budget that the runs of all methods spent."""
    return min(cell.of_step(at) * STEPS for cell in cells)


def pairs(cells: Sequence[Cell]) -> list[Pair]:
    """Each method against the baseline, document by document; none while the baseline lacks."""
    methods = [cell.method for cell in cells]
    others = [i for i, method in enumerate(methods) if method != BASELINE]
    if BASELINE not in methods or not others:
        return []
    runs = [run for cell in cells for run in cell.runs]
    bits_RxN, bytes_N = np.array([run["bits"] for run in runs]), np.array(runs[0]["bytes"])
    if any(run["bytes"] != runs[0]["bytes"] for run in runs):
        raise UserError(f"runs of {cells[0].size} have other documents: train them on one corpus.")
    ends = np.cumsum([len(cell.runs) for cell in cells])
    groups = [list(range(end - len(c.runs), end)) for c, end in zip(cells, ends, strict=True)]
    baseline = methods.index(BASELINE)
    found = differences(bits_RxN * LN2, bytes_N, groups, [(i, baseline) for i in others])
    bits = [[run["bits_per_byte"] for run in cell.runs] for cell in cells]
    seeds = [welch(bits[i], bits[baseline]) for i in others]
    both = list(zip(found, seeds, strict=True))
    adjusted = holm([(over_seeds or one.over_documents).p for one, over_seeds in both])
    return [
        Pair(methods[i], one.value, one.over_documents, over_seeds, p)
        for i, (one, over_seeds), p in zip(others, both, adjusted, strict=True)
    ]
