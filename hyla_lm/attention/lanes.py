"""The sizes, the layout with time on lanes, the matrix product and the loops of our TPU kernels.

An operand has a row for each feature of each head and a column for each position, padded to whole
blocks of 128 positions. XLA for TPU stores a BxTxHxK array in the same way.

Loops are written out, so that the compiler overlaps their steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import ACTIVATIONS

LANES = 128
ROW_TILE = 16  # rows of bfloat16 in a vector register
UNROLL = True
PADDING = -1  # the segment of padded positions
MAX_SIZE = 128  # of a head
DTYPES = (jnp.bfloat16, jnp.float32)


def fits_lanes(request: Request) -> bool:
    """Whether our kernels take a request's head sizes and dtype, and it is a plain one."""
    size = max(request.q_BxTxHxK.shape[3], request.v_BxSxHxU.shape[3])
    return size <= MAX_SIZE and request.dtype in DTYPES and request.is_plain


def round_up(x: int, multiple: int) -> int:
    return -(-x // multiple) * multiple


def lane(width: int = LANES) -> jax.Array:
    """The number of each lane, 1 x width.

    Use lax.div and lax.rem with it: they are an instruction each, // and % about ten for signs.
    """
    return lax.broadcasted_iota(jnp.int32, (1, width), 1)


@dataclass(frozen=True)
class Problem:
    """Sizes and options of one call, all known when it is traced.

    The arrays have `heads`, `key_dim` and `value_dim` (multiples of 16), and whole blocks of 128
    queries and keys; a query has `weights` numbers for its pair network; `true_key_dim` is the
    size before padding. `q_offset` is None if it is an operand.
    """

    batch: int
    heads: int
    key_dim: int
    true_key_dim: int
    value_dim: int
    query_blocks: int
    key_blocks: int
    causal: bool
    q_offset: Any
    has_segments: bool
    weights: int
    normalization: str
    activation: str
    dtype: jnp.dtype

    @property
    def scale(self) -> float:
        return self.true_key_dim**-0.5

    @property
    def queries(self) -> int:
        return self.query_blocks * LANES

    @property
    def keys(self) -> int:
        return self.key_blocks * LANES

    def sees(self, query_block: Any, key_block: Any, q_offset: Any) -> Any:
        """Whether the last query of a block may see the first key of another."""
        return not self.causal or key_block * LANES <= q_offset + query_block * LANES + LANES - 1

    def first_query_block(self, key_block: Any, q_offset: Any) -> Any:
        """The first block of queries that sees a block of keys."""
        return lax.div(jnp.maximum(key_block * LANES - q_offset, 0), LANES) if self.causal else 0

    def last_key_block(self, query_block: Any, q_offset: Any) -> Any:
        """The last block of keys that a block of queries sees."""
        last = self.key_blocks - 1
        seen = (q_offset + query_block * LANES + LANES - 1) // LANES
        return jnp.minimum(seen, last) if self.causal else last

    def head(self, index: int, dim: int) -> slice:
        return slice(index * dim, (index + 1) * dim)

    def key_rows(self, head: int) -> slice:
        return self.head(head, self.key_dim)

    def value_rows(self, head: int) -> slice:
        return self.head(head, self.value_dim)


def problem_of(request: Request) -> Problem:
    """The problem of a request."""
    _, q_length, heads, key_dim = request.q_BxTxHxK.shape
    batch, k_length, _, value_dim = request.v_BxSxHxU.shape
    return Problem(
        batch=batch,
        heads=heads,
        key_dim=round_up(key_dim, ROW_TILE),
        true_key_dim=key_dim,
        value_dim=round_up(value_dim, ROW_TILE),
        query_blocks=pl.cdiv(q_length, LANES),
        key_blocks=pl.cdiv(k_length, LANES),
        causal=request.causal,
        q_offset=request.q_offset,
        has_segments=request.segments is not None,
        weights=0 if request.weights_BxNxT is None else request.weights_BxNxT.shape[1],
        normalization=request.spec.normalization,
        activation=request.spec.activation,
        dtype=jnp.dtype(request.dtype),
    )


def rows_of_time(x_BxTxHxK: jax.Array, size: int, dtype: jnp.dtype) -> jax.Array:
    """The array as B x (H * size) x T, padded with zeros."""
    batch, length, heads, dim = x_BxTxHxK.shape
    x = x_BxTxHxK.astype(dtype).transpose(0, 2, 3, 1)
    x = jnp.pad(x, [(0, 0), (0, 0), (0, size - dim), (0, -length % LANES)])
    return x.reshape(batch, heads * size, -1)


def operand_rows(request: Request, p: Problem) -> tuple[jax.Array, jax.Array, jax.Array]:
    """q, k and v as rows of time; phi of v if the value network is linear."""
    v = request.v_BxSxHxU
    q = rows_of_time(request.q_BxTxHxK, p.key_dim, p.dtype)
    k = rows_of_time(request.k_BxSxHxK, p.key_dim, p.dtype)
    if request.spec.value_network == "linear":
        v = ACTIVATIONS[request.spec.activation](v)
    return q, k, rows_of_time(v, p.value_dim, p.dtype)


def output_of_rows(y_BxHUxT: jax.Array, request: Request, p: Problem) -> jax.Array:
    """The output as BxTxHxU, without the padding."""
    y = y_BxHUxT.reshape(p.batch, p.heads, -1, y_BxHUxT.shape[2])
    length, value_dim = request.q_BxTxHxK.shape[1], request.v_BxSxHxU.shape[3]
    return y[:, :, :value_dim, :length].transpose(0, 3, 1, 2)


def time_row(segment_BxT: jax.Array, padding: int = 0) -> jax.Array:
    """Integers BxT as B x 1 x T, padded."""
    pad = [(0, 0), (0, -segment_BxT.shape[1] % LANES)]
    return jnp.pad(segment_BxT.astype(jnp.int32), pad, constant_values=padding)[:, None]


def segment_rows(request: Request) -> list[jax.Array]:
    """The documents of queries and of keys; padded positions are in one that no token has."""
    q, k = request.q_BxTxHxK, request.k_BxSxHxK
    one_document = jnp.zeros(q.shape[:2]), jnp.zeros(k.shape[:2])
    return [time_row(segment, PADDING) for segment in request.segments or one_document]


def weight_rows(request: Request) -> tuple[jax.Array, ...]:
    """The weights as B x N x T in float32, padded to blocks of 128 queries; empty for None."""
    weights, (batch, q_length, *_) = request.weights_BxNxT, request.q_BxTxHxK.shape
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
