"""The search for the largest batch brackets it with few compiles, whatever it starts from."""

import math
from collections.abc import Callable

import pytest

from hyla_lm.tools.plan.compile import LargestBatch, search

GIB = 2**30
STEP = 16


def run(
    fixed: float, slope: float, start: int, jump_at: float = math.inf
) -> tuple[LargestBatch, Callable[[int], float]]:
    """Memory that grows with the batch, a little unevenly, as compilers are, and may jump."""
    tried: list[int] = []

    def needed(rows: int) -> float:
        tried.append(rows)
        jump = 99 * GIB if rows > jump_at else 0
        return fixed + slope * rows * (1 + 0.01 * (rows // STEP % 3)) + jump

    known = {0: fixed, start: needed(start)}
    tried.clear()
    found = search(needed, STEP, known, 16 * GIB, 8)
    assert len(tried) == len(set(tried)) == found.compiles <= 8
    assert all(rows % STEP == 0 for rows in tried)
    return found, needed


@pytest.mark.parametrize("start", [16, 65536])
def test_what_fits_and_what_does_not_are_found(start: int) -> None:
    found, needed = run(GIB, GIB / 20, start)
    assert needed(found.rows) <= 16 * GIB
    assert found.too_many is not None
    assert needed(found.too_many) > 16 * GIB
    assert found.too_many - found.rows <= max(STEP, 0.02 * found.rows)


def test_a_state_that_alone_is_too_large_fits_no_batch() -> None:
    found, _ = run(17 * GIB, GIB / 100, 256)
    assert (found.rows, found.too_many) == (0, 16)


def test_a_jump_in_memory_is_bracketed_too() -> None:
    """Past 300 rows another layout needs 99 GiB more, so the line points beyond what fails."""
    found, _ = run(GIB, GIB / 100, 16, jump_at=300)
    assert (found.rows, found.too_many) == (288, 304)
