"""A comparison as a picture, by matplotlib."""

import io

from hyla_lm.errors import UserError, printable
from hyla_lm.tools.compare.comparison import Comparison, DocumentResult
from hyla_lm.tools.compare.shapes import COLOURS, budget_label, curve_of, widest

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise UserError("--output needs matplotlib: pip install 'hyla_lm[evals]'.") from error

MOST_BARS = 4  # documents either way
LABEL = 34  # characters of a document


def draw(found: Comparison) -> bytes:
    """A PNG: validation curves, differences with intervals, and where the first pair differs."""
    top = max(3.6, 0.55 * len(found.pairs) + 1)
    below = 2.6 if found.pairs else 0.0
    figure = Figure(figsize=(11, top + below), layout="constrained")
    if found.pairs:
        grid = figure.add_gridspec(2, 1, height_ratios=(top, below))
        left, right = figure.add_subfigure(grid[0]).subplots(1, 2)
        _forest(right, found)
        _documents(figure.add_subfigure(grid[1]).subplots(), found)
    else:
        left = figure.subplots()
    _curves(left, found)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()


def _curves(axes: Axes, found: Comparison) -> None:
    for index, group in enumerate(found.groups):
        shape, colour = curve_of(group), COLOURS[index % len(COLOURS)][0]
        axes.plot(shape.budget_N, shape.mean_N, "o-", ms=3, color=colour, label=group.name)
        axes.fill_between(shape.budget_N, shape.low_N, shape.high_N, color=colour, alpha=0.18)
    axes.axvline(found.budget, color="0.5", lw=0.8, ls=":")
    axes.set(xlabel=budget_label(found), ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()


def _forest(axes: Axes, found: Comparison) -> None:
    for row, pair in enumerate(found.pairs):
        whole, inner = widest(pair), pair.over_documents
        axes.plot([whole.low, whole.high], [row, row], color="0.15", lw=1.6)
        axes.plot([inner.low, inner.high], [row, row], color="0.15", lw=5, alpha=0.35)
        axes.plot([pair.difference], [row], "o", color="0.15")
        place = axes.get_yaxis_transform()
        axes.text(0.02, row - 0.18, f"{pair.a} − {pair.b}", transform=place, va="bottom")
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set(yticks=[], ylim=(len(found.pairs) - 0.5, -0.7))
    axes.set(xlabel="difference in bits per byte, 95 % intervals\n(thick: over documents alone)")
    axes.grid(alpha=0.3, axis="x")


def _documents(axes: Axes, found: Comparison) -> None:
    """The documents of the first pair that move its difference most."""
    pair = found.pairs[0]
    better = [one for one in pair.documents if one.bits < 0][:MOST_BARS]
    worse = [one for one in pair.documents if one.bits > 0][-MOST_BARS:]
    shown = [*better, *worse]
    colours = [COLOURS[0][0] if one.bits < 0 else COLOURS[1][0] for one in shown]
    axes.barh(range(len(shown)), [one.bits for one in shown], color=colours)
    axes.set_yticks(range(len(shown)), [_label(one) for one in shown], parse_math=False, size=8)
    axes.invert_yaxis()
    axes.axvline(0, color="0.5", lw=0.8)
    axes.set(xlabel=f"bits by document, {pair.a} − {pair.b}")
    axes.grid(alpha=0.3, axis="x")


def _label(one: DocumentResult) -> str:
    text = " ".join(one.text.split()) or f"row {one.row}"
    return printable(text[:LABEL]).encode("ascii", "replace").decode()
