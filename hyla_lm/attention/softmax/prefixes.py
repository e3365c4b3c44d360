"""Softmax attention on CPU: each block of queries against the keys up to its last, and no others.

The blocks stand one after the other in the program, so their sizes differ. The gradient takes the
log of each query's sum from the forward pass and reads no key twice. Every product is of the form
MxK . KxN: what would be a transposed matrix of pairs is a transposed row of operands instead.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention.reference import accumulation_dtype
from hyla_lm.attention.request import Request
from hyla_lm.attention.softmax.libraries import splash_supports
from hyla_lm.attention.spec import ACTIVATIONS

BLOCK_QUERIES = 128
# Sixteen blocks. The program, and the time to compile it, grow with their number.
MAX_QUERIES = 2048
Segments = tuple[jax.Array, jax.Array] | None
Saved = tuple[jax.Array, jax.Array, jax.Array, Segments, jax.Array, jax.Array]


def supports(request: Request) -> bool:
    return splash_supports(request) and request.q_BxTxHxK.shape[1] <= MAX_QUERIES


def attend_prefixes(request: Request) -> jax.Array:
    """Softmax attention for a supported request, shape BxTxHxU in the accumulation dtype."""
    dtype = accumulation_dtype(request.q_BxTxHxK)
    v_BxSxHxU = request.v_BxSxHxU.astype(accumulation_dtype(request.v_BxSxHxU))
    q = request.q_BxTxHxK.astype(dtype) * request.q_BxTxHxK.shape[-1] ** -0.5
    k, v = request.k_BxSxHxK.astype(dtype), ACTIVATIONS[request.spec.activation](v_BxSxHxU)
    offset = request.q_offset if request.causal else None
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v))
    return _attend(offset, *heads_first, request.segments).swapaxes(1, 2)


def _blocks(queries: int, keys: int, offset: int | None) -> list[tuple[slice, slice]]:
    """Blocks of queries and the keys that they may see: all, without an offset of the first."""
    blocks = []
    for first in range(0, queries, BLOCK_QUERIES):
        end = min(first + BLOCK_QUERIES, queries)
        seen = keys if offset is None else min(max(end + offset, 1), keys)
        blocks.append((slice(first, end), slice(0, seen)))
    return blocks


def _visible(offset: int | None, segments: Segments, at: tuple[slice, slice]) -> jax.Array:
    """Which keys of a block its queries see, shape (1 or B, 1, T, S)."""
    t, s = at
    query_T, key_S = jnp.arange(t.start, t.stop), jnp.arange(s.start, s.stop)
    visible = jnp.ones((1, 1, query_T.size, key_S.size), bool)
    if offset is not None:
        visible &= key_S <= query_T[:, None] + offset
    if segments is not None:
        visible &= (segments[0][:, t, None] == segments[1][:, None, s])[:, None]
    return visible


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(offset: int | None, *operands: Any) -> jax.Array:
    return _forward(offset, *operands)[0]


def _forward(
    offset: int | None,
    q_BxHxTxK: jax.Array,
    k_BxHxSxK: jax.Array,
    v_BxHxSxU: jax.Array,
    segments: Segments,
) -> tuple[jax.Array, Saved]:
    k_BxHxKxS, outputs, logs = k_BxHxSxK.swapaxes(2, 3), [], []
    for t, s in _blocks(q_BxHxTxK.shape[2], k_BxHxSxK.shape[2], offset):
        visible = _visible(offset, segments, (t, s))
        s_BxHxTxS = q_BxHxTxK[:, :, t] @ k_BxHxKxS[..., s]
        shown = jnp.where(visible, s_BxHxTxS, jnp.finfo(s_BxHxTxS.dtype).min)
        largest = shown.max(axis=-1, keepdims=True)
        p_BxHxTxS = jnp.where(visible, jnp.exp(shown - largest), 0)
        total = p_BxHxTxS.sum(axis=-1, keepdims=True)
        total = jnp.where(total == 0, 1, total)
        outputs.append((p_BxHxTxS @ v_BxHxSxU[:, :, s]) / total)
        logs.append(largest + jnp.log(total))
    y_BxHxTxU, log_BxHxTx1 = jnp.concatenate(outputs, 2), jnp.concatenate(logs, 2)
    return y_BxHxTxU, (q_BxHxTxK, k_BxHxSxK, v_BxHxSxU, segments, y_BxHxTxU, log_BxHxTx1)


def _backward(
    offset: int | None, saved: Saved, dy_BxHxTxU: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q_BxHxTxK, k_BxHxSxK, v_BxHxSxU, segments, y_BxHxTxU, log_BxHxTx1 = saved
    q_BxHxKxT, dy_BxHxUxT = q_BxHxTxK.swapaxes(2, 3), dy_BxHxTxU.swapaxes(2, 3)
    k_BxHxKxS, v_BxHxUxS = k_BxHxSxK.swapaxes(2, 3), v_BxHxSxU.swapaxes(2, 3)
    dk_BxHxKxS, dv_BxHxUxS = jnp.zeros_like(k_BxHxKxS), jnp.zeros_like(v_BxHxUxS)
    mean_BxHxTx1 = (dy_BxHxTxU * y_BxHxTxU).sum(axis=-1, keepdims=True)
    dqs = []
    for t, s in _blocks(q_BxHxTxK.shape[2], k_BxHxSxK.shape[2], offset):
        s_BxHxTxS = q_BxHxTxK[:, :, t] @ k_BxHxKxS[..., s]
        a_BxHxTxS = jnp.exp(s_BxHxTxS - log_BxHxTx1[:, :, t])
        a_BxHxTxS = jnp.where(_visible(offset, segments, (t, s)), a_BxHxTxS, 0)
        da_BxHxTxS = dy_BxHxTxU[:, :, t] @ v_BxHxUxS[..., s]
        ds_BxHxTxS = a_BxHxTxS * (da_BxHxTxS - mean_BxHxTx1[:, :, t])
        dqs.append(ds_BxHxTxS @ k_BxHxSxK[:, :, s])
        dk_BxHxKxS = dk_BxHxKxS.at[..., s].add(q_BxHxKxT[..., t] @ ds_BxHxTxS)
        dv_BxHxUxS = dv_BxHxUxS.at[..., s].add(dy_BxHxUxT[..., t] @ a_BxHxTxS)
    return jnp.concatenate(dqs, 2), dk_BxHxKxS.swapaxes(2, 3), dv_BxHxUxS.swapaxes(2, 3), None


_attend.defvjp(_forward, _backward)
