"""What tools show of their results: tables as text."""

from collections.abc import Sequence


def plain(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column begins at the left; the others end at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return ["  ".join(cells).rstrip() for cells in aligned]
