"""HYLA on TPU without T x T arrays: layout, padding and gradient around the two Pallas kernels.

README.md has the maths and the blocking, with the cost counted by hand.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.kernels.block import Operands
from hyla_lm.kernels.hyla.blocks import forward_blocks
from hyla_lm.kernels.hyla.tpu_backward import backward, backward_query_blocks
from hyla_lm.kernels.hyla.tpu_common import Problem
from hyla_lm.kernels.hyla.tpu_forward import forward
from hyla_lm.kernels.lanes import (
    LANES,
    ROW_TILE,
    from_rows_of_time,
    round_up,
    rows_of_time,
    time_row,
)
from hyla_lm.kernels.spec import AttentionSpec

MAX_HEADS = 32
MAX_SIZE = 128
MAX_FLOAT32_WIDTH = 2048
PADDED_HEADS = (4, 8, 16, 32)
DTYPES = (jnp.bfloat16, jnp.float32)


def obstacle(x: Operands, spec: AttentionSpec) -> str:
    """Why the kernel cannot do a request without bias and dropout; empty if it can."""
    heads, key_dim = x.q_BxTxHxK.shape[2:]
    value_dim = x.v_BxSxHxU.shape[3]
    dtype = jnp.result_type(x.q_BxTxHxK, x.k_BxSxHxK, x.v_BxSxHxU)
    width = _padded_heads(min(heads, MAX_HEADS)) * round_up(value_dim, ROW_TILE)
    obstacles = {
        f"normalization {spec.normalization!r}": spec.normalizes_over_keys,
        "a value network of depth 2": spec.value_depth != 1,
        f"{heads} heads, more than {MAX_HEADS}": heads > MAX_HEADS,
        f"head sizes above {MAX_SIZE}": max(key_dim, value_dim) > MAX_SIZE,
        f"{dtype} operands": dtype not in DTYPES,
        f"heads * U above {MAX_FLOAT32_WIDTH} in float32, padded {width}": (
            dtype == jnp.float32 and width > MAX_FLOAT32_WIDTH
        ),
    }
    return next((name for name, applies in obstacles.items() if applies), "")


def attend_pallas(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    v_BxSxHxU: jax.Array,
    spec: AttentionSpec,
    causal: bool,
    segment_ids: tuple[jax.Array, jax.Array] | None,
    q_offset: int | jax.Array,
) -> jax.Array:
    """HYLA for a request without obstacle, shape BxTxHxU; segments are of queries and keys."""
    dtype = jnp.result_type(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU)
    batch, q_length, heads, key_dim = q_BxTxHxK.shape
    k_length, value_dim = v_BxSxHxU.shape[1], v_BxSxHxU.shape[3]
    padded_heads = _padded_heads(heads)
    problem = Problem(
        batch=batch,
        heads=padded_heads,
        true_heads=heads,
        key_dim=round_up(key_dim, ROW_TILE),
        true_key_dim=key_dim,
        value_dim=round_up(value_dim, ROW_TILE),
        query_blocks=round_up(q_length, LANES) // LANES,
        key_blocks=round_up(k_length, LANES) // LANES,
        causal=causal,
        q_offset=q_offset if isinstance(q_offset, int) else None,
        has_segments=segment_ids is not None,
        normalization=spec.normalization,
        activation=spec.activation,
        dtype=jnp.dtype(dtype),
    )
    offset = () if isinstance(q_offset, int) else (jnp.reshape(q_offset, (1,)).astype(jnp.int32),)
    segments = () if segment_ids is None else tuple(map(time_row, segment_ids))
    q = rows_of_time(q_BxTxHxK, padded_heads, problem.key_dim, problem.dtype)
    k = rows_of_time(k_BxSxHxK, padded_heads, problem.key_dim, problem.dtype)
    v = rows_of_time(v_BxSxHxU, padded_heads, problem.value_dim, problem.dtype)
    y_BxHUxT = _attend(problem, q, k, v, segments, offset)
    return from_rows_of_time(y_BxHUxT, padded_heads, heads, value_dim, q_length)


def _padded_heads(heads: int) -> int:
    return next(padded for padded in PADDED_HEADS if padded >= heads)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    p: Problem,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    segments: tuple[jax.Array, ...],
    q_offset: tuple[jax.Array, ...],
) -> jax.Array:
    return forward(p, forward_blocks(p), q_BxHKxT, k_BxHKxS, v_BxHUxS, segments, q_offset)


def _forward(p: Problem, *operands: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    return _attend(p, *operands), operands


def _backward(p: Problem, operands: tuple[Any, ...], dy_BxHUxT: jax.Array) -> tuple[Any, ...]:
    """The gradients, from spans of queries short enough for their dq to stay on the chip."""
    q, k, v, segments, q_offset = operands
    span = backward_query_blocks(p)
    parts = []
    for first in range(0, p.query_blocks, span):
        blocks = min(span, p.query_blocks - first)
        columns = slice(first * LANES, (first + blocks) * LANES)
        part = replace(
            p,
            query_blocks=blocks,
            q_offset=None if p.q_offset is None else p.q_offset + first * LANES,
        )
        q_segments, k_segments = segments[:1], segments[1:]
        gradients = backward(
            part,
            q[:, :, columns],
            k,
            v,
            dy_BxHUxT[:, :, columns],
            (*(segment[:, :, columns] for segment in q_segments), *k_segments),
            tuple(offset + first * LANES for offset in q_offset),
            jnp.float32 if span < p.query_blocks else p.dtype,
        )
        parts.append(gradients)
    dqs, dks, dvs = zip(*parts, strict=True)
    dq = jnp.concatenate(dqs, axis=2)
    dk, dv = (sum(terms[1:], terms[0]).astype(p.dtype) for terms in (dks, dvs))
    return dq, dk, dv, tuple(None for _ in segments), tuple(None for _ in q_offset)


_attend.defvjp(_forward, _backward)
