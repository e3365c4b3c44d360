"""Charts of a comparison as SVG that lies in a page and takes its colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from hyla_lm.tools.compare.comparison import Comparison, PairResult
from hyla_lm.tools.compare.shapes import (
    COLOURS,
    Curve,
    budget_label,
    curve_of,
    short,
    ticks,
    widest,
)

WIDTH, LEFT, RIGHT, TOP, FOOT = 420, 50, 14, 12, 44
CURVES_HEIGHT, ROW_HEIGHT = 300, 44


@dataclass(frozen=True)
class Scale:
    """From values between low and high to places between start and end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


def curves(found: Comparison) -> str:
    """Validation curves of the groups, with a band from the best to the worst seed."""
    shapes = [curve_of(group) for group in found.groups]
    bottom = CURVES_HEIGHT - FOOT
    x = _scale([v for one in shapes for v in one.budget_N], LEFT, WIDTH - RIGHT)
    y = _scale([v for one in shapes for v in (*one.low_N, *one.high_N)], bottom, TOP)
    parts = [*_columns(x, TOP, bottom), *_rows(y)]
    at = x(found.budget)
    parts.append(_line("budget", at, TOP, at, bottom))
    for index, shape in enumerate(shapes):
        parts += _drawn(shape, f"c{index % len(COLOURS)}", x, y)
    parts.append(_text((LEFT + WIDTH) / 2, CURVES_HEIGHT - 6, budget_label(found)))
    return _svg(CURVES_HEIGHT, f"Validation bits per byte over {budget_label(found)}", parts)


def forest(found: Comparison) -> str:
    """The difference of each pair with its interval."""
    edges = [v for pair in found.pairs for v in (widest(pair).low, widest(pair).high)]
    height = TOP + ROW_HEIGHT * len(found.pairs) + FOOT
    x, bottom = _scale([*edges, 0.0], LEFT / 2, WIDTH - RIGHT), height - FOOT
    parts = [*_columns(x, TOP, bottom), _line("zero", x(0), TOP, x(0), bottom)]
    for row, pair in enumerate(found.pairs):
        parts += _forest_row(pair, x, TOP + ROW_HEIGHT * row)
    said = "bits per byte; left of 0 the first is better"
    parts.append(_text(WIDTH / 2, height - 6, said))
    return _svg(height, "Differences of the pairs with 95 % intervals", parts)


def _drawn(shape: Curve, colour: str, x: Scale, y: Scale) -> list[str]:
    there = zip(shape.budget_N, shape.high_N, strict=True)
    back = zip(shape.budget_N[::-1], shape.low_N[::-1], strict=True)
    band = " ".join(f"{x(a)},{y(b)}" for a, b in (*there, *back))
    points = [(x(a), y(b)) for a, b in zip(shape.budget_N, shape.mean_N, strict=True)]
    line = " ".join(f"{a},{b}" for a, b in points)
    dots = [f'<circle class="dot {colour}" cx="{a}" cy="{b}" r="2.6"/>' for a, b in points]
    return [
        f'<polygon class="band {colour}" points="{band}"/>',
        f'<polyline class="line {colour}" points="{line}"/>',
        *dots,
    ]


def _forest_row(pair: PairResult, x: Scale, top: float) -> list[str]:
    whole, inner, y = widest(pair), pair.over_documents, top + 29
    label = f'<text class="label" x="{LEFT / 2}" y="{top + 15}">{escape(_named(pair))}</text>'
    return [
        label,
        _line("whole", x(whole.low), y, x(whole.high), y),
        _line("inner", x(inner.low), y, x(inner.high), y),
        f'<circle class="point" cx="{x(pair.difference)}" cy="{y}" r="4.5"/>',
    ]


def _named(pair: PairResult) -> str:
    return f"{pair.a} − {pair.b}"


def _columns(x: Scale, top: float, bottom: float) -> list[str]:
    marks = ticks(x.low, x.high)
    lines = [_line("grid", x(mark), top, x(mark), bottom) for mark in marks]
    return [*lines, *(_text(x(mark), bottom + 16, short(mark)) for mark in marks)]


def _rows(y: Scale) -> list[str]:
    marks = ticks(y.low, y.high)
    lines = [_line("grid", LEFT, y(mark), WIDTH - RIGHT, y(mark)) for mark in marks]
    numbers = [
        f'<text class="left" x="{LEFT - 6}" y="{y(mark) + 4}">{short(mark)}</text>'
        for mark in marks
    ]
    return [*lines, *numbers]


def _scale(values: Sequence[float], start: float, end: float) -> Scale:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.04 * (high - low) or 0.01 * abs(high) or 1.0
    return Scale(low - room, high + room, start, end)


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(text)}</text>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return "\n".join([head, *parts, "</svg>"])
