"""The picture of docs/records.md: bits per byte of each run, and HYLA against linear attention."""

import io
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from docs.studies.records_numbers import Cell, less

COLOURS = {"softmax": "#2a6fdb", "linear": "#d1495b", "hyla": "#2e8b57", "hybrid": "#b7791f"}
SHADES = 64  # a third of the bytes, and lines look the same
BESIDE = 0.05  # between the points of two methods


def draw(cells: Mapping[str, Sequence[Cell]]) -> bytes:
    """A PNG of all sizes."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _runs(left, cells)
    _leads(right, cells)
    for axes in (left, right):
        axes.set_xticks(range(len(cells)), [f"{size} parameters" for size in cells])
        axes.set_xlim(-0.4, len(cells) - 0.6)
        axes.grid(axis="y", alpha=0.3)
    drawn, file = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(SHADES, dither=Image.Dither.NONE).save(
            file, "PNG", optimize=True
        )
    return file.getvalue()


def _runs(axes: Axes, cells: Mapping[str, Sequence[Cell]]) -> None:
    """A point for each run, and a line through the means of a method."""
    for index, (method, colour) in enumerate(COLOURS.items()):
        own = {
            number + BESIDE * (index - 1.5): cell
            for number, found in enumerate(cells.values())
            for cell in found
            if cell.method == method
        }
        axes.plot(list(own), [cell.bits for cell in own.values()], color=colour, label=method)
        for x, cell in own.items():
            bits = [run["bits_per_byte"] for run in cell.runs]
            axes.plot([x] * len(bits), bits, "o", color=colour, ms=4)
    axes.set_ylabel("validation bits per byte")
    axes.legend(fontsize=8, ncols=2)


def _leads(axes: Axes, cells: Mapping[str, Sequence[Cell]]) -> None:
    """HYLA less linear attention, a point for each seed."""
    for number, found in enumerate(cells.values()):
        differences = less(found, "hyla", "linear")
        axes.plot([number] * len(differences), differences, "o", color=COLOURS["hyla"], ms=4)
    axes.axhline(0, color=COLOURS["linear"], lw=1)
    axes.set_ylabel("HYLA less linear attention")
