"""The picture of docs/records.md: bits per byte over FLOPs and over seconds of stepping."""

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator
from PIL import Image

from docs.studies.records import METHODS
from docs.studies.records_numbers import Cell

COLOURS = ("#2a6fdb", "#d1495b", "#2e8b57", "#b7791f")
LINES = ("-", "--", ":", "-.")
LABELS = {"flops": "training TFLOPs by formula", "seconds": "CPU seconds of steps, one core"}
UNITS = {"flops": 1e12, "seconds": 1.0}
PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
SHADES = 64  # a third of the bytes, and lines look the same
TICKS = (1, 1.5, 2, 3, 5, 7)
FIRST = 2  # evaluations before it lie far above the others


def draw(cells: Sequence[Cell]) -> bytes:
    """A PNG with a curve for each method and size."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    for axes, at in zip(figure.subplots(1, 2, sharey=True), LABELS, strict=True):
        _curves(axes, cells, at)
    drawn, file = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(
            file, "PNG", optimize=True
        )
    return file.getvalue()


def _curves(axes: Axes, cells: Sequence[Cell], at: str) -> None:
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    for cell in cells:
        steps_E, bits_E = cell.curve()
        colour = COLOURS[list(METHODS).index(cell.method)]
        line, label = LINES[sizes.index(cell.size)], f"{cell.size} {cell.method}"
        spent_E = steps_E[FIRST:] * cell.of_step(at) / UNITS[at]
        axes.plot(spent_E, bits_E[FIRST:], line, color=colour, label=label, lw=1.4)
    axes.set(xscale="log", xlabel=LABELS[at])
    axes.xaxis.set_major_locator(LogLocator(subs=TICKS, numticks=99))
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(MaxNLocator(8))
    axes.grid(alpha=0.3, which="both")
    if at == "flops":
        axes.set_ylabel("validation bits per byte")
        axes.legend(fontsize=8, ncols=len(sizes))


def short(value: float) -> str:
    """A number of an axis: 1200, 12k, 1.2M, 3.4e+15."""
    if not 1e4 <= abs(value) < 1e12:
        return f"{value:.4g}"
    scale, unit = next(pair for pair in PREFIXES if abs(value) >= 10 * pair[0] or pair[1] == "k")
    return f"{value / scale:.4g}{unit}"
