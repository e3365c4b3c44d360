"""Means and tables in Markdown."""

from collections.abc import Sequence

from hyla_lm.evals.experiments.results import Mean

NONE = "–"


def shown(found: Mean | None, digits: int = 2) -> str:
    """A mean with its error, if it has one."""
    if found is None:
        return NONE
    error = "" if found.error is None else f" ± {found.error:.{digits}f}"
    return f"{found.value:.{digits}f}{error}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]
