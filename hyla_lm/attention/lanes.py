"""The layout with time on lanes, and the matrix product, of all our TPU kernels.

An operand has a row for each feature of each head and a column for each position, padded to whole
blocks of 128 positions. XLA for TPU stores a BxTxHxK array in the same way.
"""

import jax
import jax.numpy as jnp
from jax import lax

LANES = 128
ROW_TILE = 16  # rows of bfloat16 in a vector register


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
