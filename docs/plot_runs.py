"""Draws validation bits per byte: python docs/plot_runs.py OUT.png WORKDIR... (matplotlib)."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.run.folder import read_lines

TAG = "validation/bits_per_byte"


def main() -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("plot_runs", description=__doc__)
    parser.add_argument("output", help="picture to write")
    parser.add_argument("workdirs", nargs="+", type=Path, help="folders of runs")
    options = parser.parse_args()
    return ending.run("plot_runs", lambda: plot(options.output, options.workdirs))


def plot(output: str, workdirs: Sequence[Path]) -> None:
    """Draws a line for each run; raises UserError for one without evaluations."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for workdir in workdirs:
        points = [(line["step"], line[TAG]) for line in read_lines(workdir) if TAG in line]
        if not points:
            raise UserError(f"{workdir} has no {TAG}: give a language model that was evaluated.")
        axes.plot(*zip(*points, strict=True), marker="o", label=workdir.name)
    axes.set(xlabel="step", ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    ending.process(main)
