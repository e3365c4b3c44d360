"""Draws docs/hyla.svg: what one key adds to one query, in softmax attention and in HYLA.

Usage: python docs/draw_hyla.py
"""

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

CODE = ("#3b5b92", "#a9bfe0", "#6d8fc7", "#dbe5f5")
INK, EDGE, HIDDEN = "#222222", "#8a8f98", "#f3c98b"


def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str = "white") -> None:
    shape = FancyBboxPatch(
        (x, y - 0.35), width, 0.7, boxstyle="round,pad=0.05", facecolor=colour, edgecolor=EDGE
    )
    axes.add_patch(shape)
    axes.text(x + width / 2, y, text, ha="center", va="center", color=INK, fontsize=10)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "-|>", "color": EDGE, "linestyle": style}
    )


def code(axes: Axes, x: float, y: float, text: str) -> None:
    """The latent code: a square for each head."""
    for head, colour in enumerate(CODE):
        axes.add_patch(Rectangle((x + 0.5 * head, y), 0.5, 0.5, facecolor=colour, edgecolor=EDGE))
    axes.text(x + 1, y + 0.75, text, ha="center", va="bottom", color=INK, fontsize=10)


def draw_softmax(axes: Axes) -> None:
    axes.set_title("Softmax attention (Eq. 4): the code mixes linear maps", loc="left", fontsize=11)
    code(axes, 4, 2.6, "latent code a[1..4, t, s]:\none score per head, softmax over keys")
    box(axes, 0, 0.8, 2, "values of key s")
    box(axes, 3.8, 0.8, 2.4, "linear map")
    box(axes, 8, 0.8, 2, "added to query t")
    arrow(axes, (5, 2.55), (5, 1.25), "dotted")
    arrow(axes, (2.1, 0.8), (3.7, 0.8), "solid")
    arrow(axes, (6.3, 0.8), (7.9, 0.8), "solid")


def draw_hyla(axes: Axes) -> None:
    axes.set_title("HYLA (Eq. 6): the code configures a network", loc="left", fontsize=11)
    code(axes, 4, 2.6, "latent code a[1..4, t, s]:\none score per head, normalised over heads")
    box(axes, 0, 0.8, 1.7, "values of key s")
    box(axes, 2.5, 0.8, 1.4, "weigh")
    box(axes, 4.5, 0.8, 1.0, "relu", HIDDEN)
    box(axes, 6.1, 0.8, 1.4, "read out")
    box(axes, 8.2, 0.8, 1.8, "added to query t")
    arrow(axes, (4.6, 2.55), (3.3, 1.25), "dotted")
    arrow(axes, (5.4, 2.55), (6.7, 1.25), "dotted")
    for start, end in ((1.8, 2.4), (4.0, 4.4), (5.6, 6.0), (7.6, 8.1)):
        arrow(axes, (start, 0.8), (end, 0.8), "solid")


def main() -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "hyla"
    figure, rows = plt.subplots(2, 1, figsize=(7.5, 5.2), layout="constrained")
    for axes, draw in zip(rows, (draw_softmax, draw_hyla), strict=True):
        draw(axes)
        axes.set(xlim=(-0.2, 10.2), ylim=(0.2, 4.3))
        axes.axis("off")
    figure.savefig(Path(__file__).parent / "hyla.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
