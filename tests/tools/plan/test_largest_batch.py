"""The search for the largest batch brackets it with few compiles, whatever it starts from."""

import pytest

from hyla_lm.tools.plan.compile import search

GIB = 2**30


def run(fixed: float, slope: float, step: int, start: int, compiles: int = 8):
    """Memory that grows with the batch, a little unevenly, as compilers are."""
    tried: list[int] = []
    said: list[str] = []

    def needed(rows: int) -> float:
        tried.append(rows)
        return fixed + slope * rows * (1 + 0.01 * (rows // step % 3))

    known = {0: fixed, start: needed(start)}
    tried.clear()
    found = search(needed, step, known, 16 * GIB, compiles, said.append)
    assert len(tried) == len(set(tried)) == found.compiles <= compiles
    assert len(said) == len(tried)
    assert all(rows % step == 0 for rows in tried)
    return found, needed


@pytest.mark.parametrize("start", [16, 256, 4096, 65536])
@pytest.mark.parametrize("slope", [GIB / 3000, GIB / 100, GIB / 20])
def test_what_fits_and_what_does_not_are_found(start: int, slope: float) -> None:
    found, needed = run(GIB, slope, 16, start)
    assert needed(found.rows) <= 16 * GIB
    assert found.too_many is not None
    assert needed(found.too_many) > 16 * GIB
    assert found.too_many - found.rows <= max(16, 0.02 * found.rows)


def test_a_state_that_alone_is_too_large_fits_no_batch() -> None:
    found, _ = run(17 * GIB, GIB / 100, 16, 256)
    assert (found.rows, found.too_many) == (0, 16)


def test_a_jump_in_memory_is_bracketed_too() -> None:
    """Past 300 rows another layout needs 99 GiB more, so the line points beyond what fails."""
    tried: list[int] = []

    def needed(rows: int) -> float:
        tried.append(rows)
        return GIB + rows * GIB / 100 + (99 * GIB if rows > 300 else 0)

    found = search(needed, 16, {0: GIB, 16: 1.16 * GIB}, 16 * GIB, 10, lambda line: None)
    assert (found.rows, found.too_many) == (288, 304)
