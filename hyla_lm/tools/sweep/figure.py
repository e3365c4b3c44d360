"""The picture of a sweep: the metric over a swept number, a line for each of the other settings."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import pstdev
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.points import Point, Value
from hyla_lm.tools.sweep.summary import Standing, Summary

try:
    import matplotlib
except ImportError as error:
    raise UserError("a picture needs matplotlib: pip install 'hyla_lm[evals]'") from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 110
MOST_LINES, MOST_ROWS = 10, 30
FAR_APART = 4.0
TITLE = "mean ± standard error; a dot is a seed"
RING: dict[str, Any] = {"marker": "o", "s": 170, "facecolors": "none", "edgecolors": "black"}
SEED_DOTS: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": 5, "alpha": 0.4}


@dataclass(frozen=True)
class Layout:
    """The swept number on the x axis, and the points of each line in its order."""

    key: str
    lines: dict[str, list[tuple[float, Standing]]]

    @property
    def numbers(self) -> list[float]:
        return sorted({number for line in self.lines.values() for number, _ in line})


def draw(summary: Summary) -> bytes:
    """A PNG: lines over a number where one is swept and that is few lines, else a ranking.

    Some run must be finished.
    """
    layout = layout_of(summary.standings)
    figure = _ranking(summary) if layout is None else _lines(summary, layout)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI)
    plt.close(figure)
    return png.getvalue()


def layout_of(standings: Sequence[Standing]) -> Layout | None:
    """The layout over the number of the most values; None if there is none, or too many lines."""
    numbers: dict[str, set[float]] = {}
    for standing in standings:
        for value in standing.point.values:
            if value.number is not None:
                numbers.setdefault(value.key, set()).add(value.number)
    shared = {key: len(found) for key, found in numbers.items() if _is_in_all(key, standings)}
    key = max(shared, key=lambda one: shared[one], default=None)
    if key is None or shared[key] < 2:
        return None
    lines: dict[str, list[tuple[float, Standing]]] = {}
    for standing in standings:
        number = _value(standing.point, key).number
        assert number is not None
        lines.setdefault(_label(standing.point, key), []).append((number, standing))
    ordered = {name: sorted(lines[name], key=lambda one: one[0]) for name in sorted(lines)}
    return Layout(key, ordered) if len(ordered) <= MOST_LINES else None


def is_geometric(numbers: Sequence[float]) -> bool:
    """Whether sorted numbers lie more evenly on a log axis."""
    if numbers[0] <= 0:
        return False
    if len(numbers) == 2:
        return numbers[1] / numbers[0] >= FAR_APART
    ratios = [larger / smaller for smaller, larger in pairwise(numbers)]
    steps = [larger - smaller for smaller, larger in pairwise(numbers)]
    return _unevenness(ratios) < _unevenness(steps)


def _unevenness(values: Sequence[float]) -> float:
    return pstdev(values) / (sum(values) / len(values))


def _lines(summary: Summary, layout: Layout) -> Figure:
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for number, (label, line) in enumerate(layout.lines.items()):
        _line(axes, label, line, f"C{number}")
    if is_geometric(layout.numbers):
        axes.set_xscale("log")
    axes.set_xticks(layout.numbers, [f"{number:g}" for number in layout.numbers])
    axes.minorticks_off()
    axes.set(xlabel=layout.key, ylabel=_measured(summary), title=TITLE)
    axes.grid(alpha=0.3)
    for line in layout.lines.values():
        for place, one in line:
            if one is summary.best and one.mean is not None:
                axes.scatter(place, one.mean, label="best", zorder=3, **RING)
    axes.legend(fontsize=8)
    return figure


def _line(axes: Axes, label: str, line: list[tuple[float, Standing]], color: str) -> None:
    """Means with standard errors, the seeds as dots, and a cross where runs failed."""
    known = [(number, one.mean, one.error or 0.0) for number, one in line if one.mean is not None]
    if known:
        x, y, errors = zip(*known, strict=True)
        axes.errorbar(x, y, errors, marker="o", capsize=3, label=label or None, color=color)
    for number, one in line:
        axes.plot([number] * len(one.values), one.values, color=color, **SEED_DOTS)
    failed = [number for number, one in line if one.failures]
    if failed:
        place = axes.get_xaxis_transform()
        name = f"{label} failed".strip()
        axes.plot(
            failed,
            [0.97] * len(failed),
            "x",
            color=color,
            transform=place,
            label=name,
            clip_on=False,
        )


def _ranking(summary: Summary) -> Figure:
    """The best points from above, each a row."""
    rows = summary.standings[:MOST_ROWS]
    figure, axes = plt.subplots(figsize=(7.5, 1.4 + 0.32 * len(rows)), layout="constrained")
    for place, one in enumerate(rows):
        axes.plot(one.values, [place] * len(one.values), color="C0", **SEED_DOTS)
        if one.mean is not None:
            axes.errorbar(one.mean, place, xerr=one.error or 0.0, marker="o", capsize=3, color="C0")
    labels = [f"{one.point.name} (failed)" if one.failures else one.point.name for one in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.set(xlabel=_measured(summary), title=TITLE)
    axes.grid(alpha=0.3)
    axes.invert_yaxis()
    return figure


def _measured(summary: Summary) -> str:
    return f"{summary.metric.name} ({summary.metric.best} is best)"


def _is_in_all(key: str, standings: Sequence[Standing]) -> bool:
    """Whether every point has a number for the key."""
    return all(
        any(value.key == key and value.number is not None for value in standing.point.values)
        for standing in standings
    )


def _value(point: Point, key: str) -> Value:
    return next(value for value in point.values if value.key == key)


def _label(point: Point, key: str) -> str:
    """What the points of a line share, in short."""
    others = [value for value in point.values if value.key != key]
    return ", ".join(f"{value.key.rpartition('.')[2]} {value.label}" for value in others)
