"""The layout with time on lanes, the matrix product and the loops of all our TPU kernels.

An operand has a row for each feature of each head and a column for each position, padded to whole
blocks of 128 positions. XLA for TPU stores a BxTxHxK array in the same way.

Loops are written out, so that the compiler overlaps their steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

LANES = 128
ROW_TILE = 16  # rows of bfloat16 in a vector register
UNROLL = True


def round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def lane(width: int = LANES) -> jax.Array:
    """The number of each lane, 1 x width.

    Use lax.div and lax.rem with it: they are an instruction each, // and % about ten for signs.
    """
    return lax.broadcasted_iota(jnp.int32, (1, width), 1)


def rows_of_time(x_BxTxHxK: jax.Array, heads: int, size: int, dtype: jnp.dtype) -> jax.Array:
    """The array as B x (heads * size) x T, padded with zeros."""
    batch, length, true_heads, dim = x_BxTxHxK.shape
    x = x_BxTxHxK.astype(dtype).transpose(0, 2, 3, 1)
    x = jnp.pad(x, [(0, 0), (0, heads - true_heads), (0, size - dim), (0, -length % LANES)])
    return x.reshape(batch, heads * size, -1)


def from_rows_of_time(
    y_BxHUxT: jax.Array, padded_heads: int, heads: int, size: int, length: int
) -> jax.Array:
    """The array as BxTxHxU, without the padding."""
    y = y_BxHUxT.reshape(y_BxHUxT.shape[0], padded_heads, -1, y_BxHUxT.shape[2])
    return y[:, :heads, :size, :length].transpose(0, 3, 1, 2)


def time_row(segment_BxT: jax.Array, padding: int = 0) -> jax.Array:
    """Integers BxT as B x 1 x T, padded."""
    pad = [(0, 0), (0, -segment_BxT.shape[1] % LANES)]
    return jnp.pad(segment_BxT.astype(jnp.int32), pad, constant_values=padding)[:, None]


def weight_rows(weights: jax.Array | None, batch: int, q_length: int) -> tuple[jax.Array, ...]:
    """The weights as B x N x T in float32, padded to blocks of 128 queries; empty for None."""
    if weights is None:
        return ()
    whole = jnp.broadcast_to(weights.astype(jnp.float32), (batch, weights.shape[1], q_length))
    return (jnp.pad(whole, [(0, 0), (0, 0), (0, -q_length % LANES)]),)


def weights_of(weight_refs: Sequence[Any]) -> jax.Array | None:
    """The weights of a block of queries, N x 1 x 128."""
    if not weight_refs:
        return None
    (ref,) = weight_refs
    return jnp.stack([ref[0, row : row + 1] for row in range(ref.shape[1])])


def matrix_product(x: jax.Array, y: jax.Array, contract: tuple[int, int] = (1, 0)) -> jax.Array:
    """A product accumulated in float32; float32 operands are not rounded to bfloat16."""
    exact = x.dtype == jnp.float32
    return lax.dot_general(
        x,
        y,
        (((contract[0],), (contract[1],)), ((), ())),
        precision=lax.Precision.HIGHEST if exact else lax.Precision.DEFAULT,
        preferred_element_type=jnp.float32,
    )


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
