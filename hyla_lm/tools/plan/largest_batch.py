"""Searches the largest batch that fits, by compiling sizes that a linear fit predicts."""

import math
from collections.abc import Callable
from dataclasses import dataclass

MAX_GROWTH = 64  # from one compile to the next
TOLERANCE = 0.02  # the search ends when both numbers of rows are this near


@dataclass(frozen=True)
class LargestBatch:
    """Rows known to fit (0: none), rows known not to fit (None: not found), and the compiles."""

    rows: int
    too_many: int | None
    compiles: int


def search(
    needed_bytes: Callable[[int], float],
    step: int,
    known: dict[int, float],
    available_bytes: float,
    compiles: int,
    say: Callable[[str], None],
) -> LargestBatch:
    """Tries multiples of `step` rows, at most `compiles` of them.

    `needed_bytes(rows)` compiles and returns bytes a chip, even if they are too many; `known` has
    the bytes of some numbers of rows, with those of the state for 0 rows.
    """
    found = {rows // step: size for rows, size in known.items()}
    tried = 0
    while tried < compiles:
        candidate = _next(found, available_bytes)
        if candidate is None:
            break
        tried += 1
        found[candidate] = needed_bytes(candidate * step)
        verdict = "fit" if found[candidate] <= available_bytes else "do not fit"
        say(
            f"largest batch, compile {tried} of at most {compiles}: {candidate * step:,} rows "
            f"{verdict} ({found[candidate] / 2**30:.2f} GiB of {available_bytes / 2**30:.2f})"
        )
    low, high = _bracket(found, available_bytes)
    near = high is not None and high - low <= max(1, TOLERANCE * low)
    too_many = max(high, 1) * step if near and high is not None else None
    return LargestBatch(low * step, too_many, tried)


def _bracket(found: dict[int, float], available: float) -> tuple[int, int | None]:
    low = max((units for units, size in found.items() if size <= available), default=0)
    high = min((units for units, size in found.items() if size > available), default=None)
    return low, high


def _next(found: dict[int, float], available: float) -> int | None:
    """Rows at which the line through the two nearest sizes meets the limit, else the middle."""
    low, high = _bracket(found, available)
    if high is not None and high - low <= max(1, TOLERANCE * low):
        return None
    nearest = sorted(found, key=lambda units: abs(found[units] - available))[:2]
    first, last = min(nearest), max(nearest)
    slope = (found[last] - found[first]) / (last - first) if last > first else 0.0
    guess = math.floor(first + (available - found[first]) / slope) if slope > 0 else 2 * last
    margin = max(1, math.floor(TOLERANCE * low))
    guess = min(max(guess, low + margin), max(low, 1) * MAX_GROWTH)
    return guess if high is None or guess < high else (low + high) // 2
