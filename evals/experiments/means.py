"""Means over seeds, tables of them in Markdown, and the files of results: for every report."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hyla_lm.storage import write_whole

NONE = "–"


@dataclass(frozen=True)
class Mean:
    """Mean and standard error over `count` seeds; one seed has no error."""

    value: float
    error: float | None
    count: int


def mean_of(values: Sequence[float]) -> Mean | None:
    """The mean of the values; None without values."""
    if not values:
        return None
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return Mean(mean(values), error, len(values))


def shown(value: Mean | None, digits: int = 2) -> str:
    """A mean with its error, if it has one."""
    if value is None:
        return NONE
    error = "" if value.error is None else f" ± {value.error:.{digits}f}"
    return f"{value.value:.{digits}f}{error}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def write_json(path: Path, content: Mapping[str, Any], digits: int | None = None) -> None:
    """Writes a file that appears whole, with so many digits behind the point of each number."""
    text = json.dumps(content, indent=1)
    if digits is not None:
        rounded = json.loads(text, parse_float=lambda number: round(float(number), digits))
        text = json.dumps(rounded, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (text + "\n").encode())
