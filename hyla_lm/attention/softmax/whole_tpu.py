"""Softmax attention on TPU by our own kernel, for rows of scores that fit on the chip."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention.lanes import (
    LANES,
    ROW_TILE,
    from_rows_of_time,
    round_up,
    rows_of_time,
    time_row,
)
from hyla_lm.attention.request import Request, first_reason
from hyla_lm.attention.softmax import splash_tpu
from hyla_lm.attention.softmax.whole_backward import backward
from hyla_lm.attention.softmax.whole_common import Problem
from hyla_lm.attention.softmax.whole_forward import forward
from hyla_lm.attention.spec import ACTIVATIONS

MAX_LENGTH = 2048
MAX_SIZE = 128
DTYPES = (jnp.bfloat16, jnp.float32)
PADDING = -1  # the segment of padded positions, which no token has


def unsupported(request: Request) -> str:
    """Why the kernel cannot do a request; empty if it can. Longer rows are for splash."""
    length = max(request.q_BxTxHxK.shape[1], request.k_BxSxHxK.shape[1])
    size = max(request.q_BxTxHxK.shape[3], request.v_BxSxHxU.shape[3])
    return splash_tpu.unsupported(request) or first_reason(
        {
            f"rows above {MAX_LENGTH}": length > MAX_LENGTH,
            f"head sizes above {MAX_SIZE}": size > MAX_SIZE,
            f"{request.dtype} operands": request.dtype not in DTYPES,
        }
    )


def attend_whole(request: Request) -> jax.Array:
    """Softmax attention for a supported request, shape BxTxHxU."""
    assert request.q_offset is not None
    batch, q_length, heads, key_dim = request.q_BxTxHxK.shape
    k_length, value_dim = request.v_BxSxHxU.shape[1], request.v_BxSxHxU.shape[3]
    p = Problem(
        batch=batch,
        heads=heads,
        key_dim=round_up(key_dim, ROW_TILE),
        value_dim=round_up(value_dim, ROW_TILE),
        scale=key_dim**-0.5,
        query_blocks=round_up(q_length, LANES) // LANES,
        key_blocks=round_up(k_length, LANES) // LANES,
        causal=request.causal,
        q_offset=request.q_offset,
        dtype=jnp.dtype(request.dtype),
    )
    one_document = jnp.zeros((batch, q_length)), jnp.zeros((batch, k_length))
    segments = [time_row(segment, PADDING) for segment in request.segments or one_document]
    q = rows_of_time(request.q_BxTxHxK, heads, p.key_dim, p.dtype)
    k = rows_of_time(request.k_BxSxHxK, heads, p.key_dim, p.dtype)
    phi_v = ACTIVATIONS[request.spec.activation](request.v_BxSxHxU)
    v = rows_of_time(phi_v, heads, p.value_dim, p.dtype)
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
