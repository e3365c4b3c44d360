"""matplotlib without a display, for the pictures of all reports."""

import io
from pathlib import Path

from hyla_lm.errors import UserError
from hyla_lm.package import install
from hyla_lm.storage import write_whole

try:
    import matplotlib
except ImportError as error:
    raise UserError(f"Figures need matplotlib: {install('evals')}.") from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

__all__ = ["Figure", "plt", "save"]
DPI = 110


def save(path: Path, figure: Figure) -> None:
    """Writes a PNG that appears whole, and closes the figure."""
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI)
    plt.close(figure)
    write_whole(path, png.getvalue())
