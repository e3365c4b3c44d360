"""Softmax attention on TPU by our own kernel, while a row of scores fits the chip whole."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.kernels.lanes import (
    LANES,
    ROW_TILE,
    from_rows_of_time,
    round_up,
    rows_of_time,
    time_row,
)
from hyla_lm.kernels.softmax.whole_backward import backward
from hyla_lm.kernels.softmax.whole_common import Problem
from hyla_lm.kernels.softmax.whole_forward import forward
from hyla_lm.kernels.spec import ACTIVATIONS

MAX_LENGTH = 2048
MAX_SIZE = 128
DTYPES = (jnp.bfloat16, jnp.float32)
PADDING = -1  # the segment of padded positions, which no token has


def fits(q_BxTxHxK: jax.Array, k_BxSxHxK: jax.Array, v_BxSxHxU: jax.Array) -> bool:
    """Whether the kernel does a request of these operands."""
    lengths = q_BxTxHxK.shape[1], k_BxSxHxK.shape[1]
    sizes = q_BxTxHxK.shape[3], v_BxSxHxU.shape[3]
    dtype = jnp.result_type(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU)
    return max(lengths) <= MAX_LENGTH and max(sizes) <= MAX_SIZE and dtype in DTYPES


def attend_whole(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    v_BxSxHxU: jax.Array,
    activation: str,
    causal: bool,
    segment_ids: tuple[jax.Array, jax.Array] | None,
    q_offset: int,
) -> jax.Array:
    """Softmax attention of operands that fit, shape BxTxHxU; segments are of queries and keys."""
    dtype = jnp.result_type(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU)
    batch, q_length, heads, key_dim = q_BxTxHxK.shape
    k_length, value_dim = v_BxSxHxU.shape[1], v_BxSxHxU.shape[3]
    p = Problem(
        batch=batch,
        heads=heads,
        key_dim=round_up(key_dim, ROW_TILE),
        value_dim=round_up(value_dim, ROW_TILE),
        scale=key_dim**-0.5,
        query_blocks=round_up(q_length, LANES) // LANES,
        key_blocks=round_up(k_length, LANES) // LANES,
        causal=causal,
        q_offset=q_offset,
        dtype=jnp.dtype(dtype),
    )
    one_document = jnp.zeros((batch, q_length)), jnp.zeros((batch, k_length))
    segments = [time_row(segment, PADDING) for segment in segment_ids or one_document]
    q = rows_of_time(q_BxTxHxK, heads, p.key_dim, p.dtype)
    k = rows_of_time(k_BxSxHxK, heads, p.key_dim, p.dtype)
    v = rows_of_time(ACTIVATIONS[activation](v_BxSxHxU), heads, p.value_dim, p.dtype)
    y_BxHUxT = _attend(p, q, k, v, *segments)
    return from_rows_of_time(y_BxHUxT, heads, heads, value_dim, q_length)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(p: Problem, *operands: jax.Array) -> jax.Array:
    return forward(p, *operands)[0]


def _forward(p: Problem, *operands: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    y, log_z = forward(p, *operands)
    return y, (*operands, y, log_z)


def _backward(p: Problem, saved: tuple[Any, ...], dy_BxHUxT: jax.Array) -> tuple[Any, ...]:
    return (*backward(p, *saved, dy_BxHUxT), None, None)


_attend.defvjp(_forward, _backward)
