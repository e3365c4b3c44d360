"""Recomputes the figures that pages of docs/ state in words, from the committed results.

docs/results/claims.json lists them: the claim, its page, the figure as the page prints it, and a
function below with its arguments. `files` are groups of results, each a pattern below docs/, and
`of` is the field that is read of each file, or a quotient of two.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.tools.compare.intervals import welch

DOCS = Path(__file__).parents[1]
CLAIMS = DOCS / "results" / "claims.json"
Claim = Mapping[str, Any]
Groups = Sequence[np.ndarray]


def claims() -> list[Claim]:
    found: list[Claim] = json.loads(CLAIMS.read_text())
    return found


def figure(claim: Claim) -> str:
    """The figure of a claim, from its files; raises UserError where a pattern finds none."""
    groups = [values(pattern, claim["of"]) * claim.get("scale", 1) for pattern in claim["files"]]
    return FUNCTIONS[claim["function"]](groups, claim.get("digits", 2))


def values(pattern: str, of: str) -> np.ndarray:
    """A field, with dots between its keys, of each file of a pattern."""
    paths = sorted(DOCS.glob(pattern))
    if not paths:
        raise UserError(f"no file is {pattern}: correct docs/results/claims.json.")
    read = [json.loads(path.read_text()) for path in paths]
    above, *below = [np.array([field(one, part) for one in read]) for part in of.split(" / ")]
    return above / below[0] if below else above


def field(result: Mapping[str, Any], dotted: str) -> Any:
    return reduce(lambda part, key: part[key], dotted.split("."), result)


def each(groups: Groups, digits: int) -> str:
    """All values of the first group."""
    return joined(groups[0], digits)


def mean(groups: Groups, digits: int) -> str:
    """The mean of the first group, with its standard error where it has several values."""
    group = groups[0]
    error = f" ± {np.std(group, ddof=1) / len(group) ** 0.5:.{digits}f}" if len(group) > 1 else ""
    return f"{group.mean():.{digits}f}{error}"


def means(groups: Groups, digits: int) -> str:
    """The mean of each group."""
    return joined([group.mean() for group in groups], digits)


def difference(groups: Groups, digits: int) -> str:
    """The first mean less the second, with Welch's interval of 95 %."""
    found = welch(groups[0], groups[1])
    assert found is not None, "an interval needs two values on each side"
    value = groups[0].mean() - groups[1].mean()
    return f"{value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def lower(groups: Groups, digits: int) -> str:
    """In how many pairs the value of a group is below that of the next group."""
    signs = [a < b for a, b in zip(np.ravel(groups[::2]), np.ravel(groups[1::2]), strict=True)]
    return f"{sum(signs)} of {len(signs)}"


def gaps(groups: Groups, digits: int) -> str:
    """Each second mean less the one before it."""
    pairs = zip(groups[::2], groups[1::2], strict=True)
    return joined([b.mean() - a.mean() for a, b in pairs], digits)


def gap_range(groups: Groups, digits: int) -> str:
    """The smallest and the largest of the gaps."""
    found = [b.mean() - a.mean() for a, b in zip(groups[::2], groups[1::2], strict=True)]
    return f"{min(found):.{digits}f} to {max(found):.{digits}f}"


def share(groups: Groups, digits: int) -> str:
    """How far the first mean is on the way from the third to the second, in percent."""
    first, second, third = (group.mean() for group in groups)
    return f"{100 * (first - third) / (second - third):.{digits}f} %"


def ratio(groups: Groups, digits: int) -> str:
    """The first mean over the second."""
    return f"{groups[0].mean() / groups[1].mean():.{digits}f}"


def joined(numbers: Sequence[float] | np.ndarray, digits: int) -> str:
    """Numbers as a sentence lists them."""
    *first, last = [f"{number:.{digits}f}" for number in numbers]
    return f"{', '.join(first)} and {last}" if first else last


FUNCTIONS: Mapping[str, Callable[[Groups, int], str]] = {
    function.__name__: function
    for function in (each, mean, means, difference, lower, gaps, gap_range, share, ratio)
}
