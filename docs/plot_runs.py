"""Draws validation bits per byte: python docs/plot_runs.py OUT.png WORKDIR... (matplotlib)."""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from hyla_lm.running.run_folder import read_lines

TAG = "validation/bits_per_byte"


def main() -> None:
    output, *workdirs = sys.argv[1:]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for workdir in map(Path, workdirs):
        points = [(line["step"], line[TAG]) for line in read_lines(workdir) if TAG in line]
        axes.plot(*zip(*points, strict=True), marker="o", label=workdir.name)
    axes.set(xlabel="step", ylabel="validation bits per byte")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(output, dpi=110)


if __name__ == "__main__":
    main()
