"""Draws docs/mesh.svg, how a batch flows over the mesh, and docs/loop.svg, the training loop.

Usage: python docs/draw_flow.py
"""

from collections.abc import Callable
from pathlib import Path

import matplotlib
from draw_hyla import CODE, HIDDEN, INK, arrow, box
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HOSTS = ("host 0", "host 1")
DEVICES = ("device 0", "device 1", "device 2", "device 3")


def note(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="left", va="center", color=INK, fontsize=9)


def draw_mesh(axes: Axes) -> None:
    """Rows down from the global batch to devices, gradients down to parameters."""
    note(axes, 0.2, 7.3, "mesh: data 2 x fsdp 2")
    box(axes, 0.2, 6.4, 7.6, "global batch of step n: 8 rows, chosen by the seed", CODE[3])
    for host, name in enumerate(HOSTS):
        left = 0.2 + 4.0 * host
        box(axes, left, 4.9, 3.6, f"{name} reads rows {4 * host} to {4 * host + 3}")
        arrow(axes, (left + 1.8, 6.0), (left + 1.8, 5.35), "solid")
    for device, name in enumerate(DEVICES):
        left = 0.2 + 2.0 * device
        box(axes, left, 3.4, 1.6, f"{name}\n2 rows", HIDDEN)
        arrow(axes, (left + 0.8, 4.5), (left + 0.8, 3.85), "solid")
        arrow(axes, (left + 0.8, 3.0), (left + 0.8, 2.35), "solid")
    box(axes, 0.2, 1.9, 7.6, "gradients are added up over data, replica and fsdp", CODE[1])
    for device in range(len(DEVICES)):
        left = 0.2 + 2.0 * device
        arrow(axes, (left + 0.8, 1.5), (left + 0.8, 0.85), "solid")
        box(axes, left, 0.4, 1.6, f"update: part {device % 2}")
    axes.set(xlim=(0, 8), ylim=(-0.2, 7.5))


def draw_loop(axes: Axes) -> None:
    """What is due before a step, then the step."""
    box(axes, 0.2, 2.6, 2.6, "what is due\nat step n", HIDDEN)
    box(axes, 4.0, 2.6, 2.0, "next batch", CODE[3])
    box(axes, 7.0, 2.6, 2.4, "train step\n(starts on the device)", CODE[1])
    box(axes, 10.2, 2.6, 1.9, "log step n - 1")
    for start, end in ((2.9, 3.9), (6.1, 6.9), (9.5, 10.1)):
        arrow(axes, (start, 2.6), (end, 2.6), "solid")
    for start, end in (((11.1, 2.2), (11.1, 1.6)), ((1.5, 1.6), (1.5, 2.15))):
        arrow(axes, start, end, "solid")
    axes.plot((1.5, 11.1), (1.6, 1.6), color="#8a8f98", linewidth=1)
    axes.text(6.3, 1.75, "n becomes n + 1", ha="center", color=INK, fontsize=9)
    note(axes, 0.2, 4.2, "in this order: errors of background work, checkpoint, evaluation,")
    note(axes, 0.2, 3.8, "diagnostics, samples, suites, summary, interruption")
    note(axes, 4.0, 3.3, "read ahead by threads")
    axes.set(xlim=(0, 12.4), ylim=(1.3, 4.5))


def save(name: str, draw: Callable[[Axes], None], size: tuple[float, float]) -> None:
    figure, axes = plt.subplots(figsize=size, layout="constrained")
    draw(axes)
    axes.axis("off")
    figure.savefig(Path(__file__).with_name(name), metadata={"Date": None})


def main() -> None:
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "flow"
    save("mesh.svg", draw_mesh, (6.2, 4.4))
    save("loop.svg", draw_loop, (8.6, 2.4))


if __name__ == "__main__":
    main()
