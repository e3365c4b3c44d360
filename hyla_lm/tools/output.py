"""What tools show of their results: tables as text, and pictures by matplotlib."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyla_lm.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100


def plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column begins at the left; the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return ["  ".join(cells).rstrip() for cells in aligned]


def new_figure(width: float, height: float) -> "Figure":
    """An empty figure of so many inches; raises UserError where matplotlib is not installed.

    matplotlib is optional and slow to import, so that only those who draw need it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("pictures need matplotlib: pip install 'hyla_lm[plots]'.") from error
    return Figure(figsize=(width, height), layout="constrained")


def png(figure: "Figure") -> bytes:
    """The picture as the content of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    return file.getvalue()
