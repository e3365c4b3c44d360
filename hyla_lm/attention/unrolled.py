"""Loops of the TPU kernels that are written out, so that the compiler overlaps their steps."""

from collections.abc import Callable
from typing import Any

from jax import lax
from jax.experimental import pallas as pl

UNROLL = True


def unrolled(times: int, step: Callable[[Any, Any], Any], carry: Any) -> Any:
    """The last of `carry = step(index, carry)` with indices 0, 1, ..."""
    return lax.fori_loop(0, times, step, carry, unroll=UNROLL)


def repeat(times: int, step: Callable[[Any], None]) -> None:
    """Calls `step` with 0, 1, ..."""

    def body(index: Any, carry: int) -> int:
        step(index)
        return carry

    unrolled(times, body, 0)


def rows_at(index: Any, size: int) -> Any:
    """Rows number `index` of a stack of equally many."""
    return pl.ds(pl.multiple_of(index * size, size), size)
