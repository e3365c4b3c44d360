"""What both pictures of a comparison draw: a curve and band for each group, and axes."""

import math
from dataclasses import dataclass

import numpy as np

from hyla_lm.tools.compare.comparison import Comparison, GroupResult, PairResult
from hyla_lm.tools.compare.intervals import Interval
from hyla_lm.tools.compare.runs import BUDGETS

# Light and dark: eight hues that stay apart for the colour-blind.
COLOURS = (
    *(("#2a6fdb", "#7aa9f7"), ("#d1495b", "#f08a98"), ("#2e8b57", "#6fcf97")),
    *(("#b7791f", "#e3b35c"), ("#7b4fc9", "#b79af0"), ("#13808a", "#5cc6cf")),
    *(("#8a5a44", "#cfa28d"), ("#5c6670", "#a6b0ba")),
)

UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Curve:
    """Bits per byte over a budget: the mean of a group's runs, and the least and most of them."""

    budget_N: np.ndarray
    mean_N: np.ndarray
    low_N: np.ndarray
    high_N: np.ndarray


def curve_of(group: GroupResult) -> Curve:
    """The group's curve over the budgets that all of its runs have reached."""
    first = max(run.budgets[0] for run in group.runs)
    last = min(run.budgets[-1] for run in group.runs)
    every = np.unique(np.concatenate([run.budgets for run in group.runs]))
    budgets = every[(every >= first) & (every <= last)]
    values = np.stack([np.interp(budgets, run.budgets, run.curve) for run in group.runs])
    return Curve(budgets, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def widest(pair: PairResult) -> Interval:
    """The interval that is drawn: over seeds and documents where there are seeds."""
    return pair.over_seeds or pair.over_documents


def budget_label(found: Comparison) -> str:
    return BUDGETS[found.at]


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between two."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 5, 10) if power * one >= raw)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def short(value: float) -> str:
    """A number of an axis: 1200, 12k, 1.2M, 3.4e+15."""
    if not 1e4 <= abs(value) < 1e12:
        return f"{value:.4g}"
    scale, unit = next(pair for pair in UNITS if abs(value) >= 10 * pair[0] or pair[1] == "k")
    return f"{value / scale:.4g}{unit}"
