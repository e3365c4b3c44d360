"""matplotlib without a display, for the pictures of all reports."""

import io
from pathlib import Path

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole

try:
    import matplotlib
except ImportError as error:
    raise UserError("Figures need matplotlib: pip install 'hyla_lm[evals]'.") from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["Axes", "Figure", "panels", "plt", "save"]
DPI = 110


def panels(
    rows: int, columns: int, width: float, height: float, sharey: bool = False
) -> tuple[Figure, np.ndarray]:
    """A figure of so many inches and its grid of axes, rows x columns."""
    return plt.subplots(
        rows,
        columns,
        figsize=(width, height),
        sharey=sharey,
        squeeze=False,
        layout="constrained",
    )


def save(path: Path, figure: Figure) -> None:
    """Writes a PNG that appears whole, and closes the figure."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI)
    plt.close(figure)
    write_whole(path, png.getvalue())
