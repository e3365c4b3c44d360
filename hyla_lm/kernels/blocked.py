"""Attention block by block, with the gradient computed the same way: memory linear in T.

A scan visits the pairs of a query block and a key block that the causal mask leaves non-empty and
adds each pair's output. Backward, the same scan recomputes a pair and adds its gradients. Softmax
needs a query's whole row of scores, so its key block is all keys. kernels/README.md has the maths.
"""

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.kernels.block import Operands, Pairing, attend_block
from hyla_lm.kernels.hyla.blocked import apply_values
from hyla_lm.kernels.scores import accumulation_dtype
from hyla_lm.kernels.spec import AttentionSpec

BLOCK_SIZE = 128
PADDED_SEGMENT = -1


def attend_blocked(
    x: Operands, pairing: Pairing, spec: AttentionSpec, causal: bool, q_offset: int | None
) -> jax.Array:
    """attend_block at any T and S with memory linear in both; q_offset None means unknown.

    A known offset of the first query lets a causal mask skip the blocks it empties.
    """
    q_length, k_length = x.q_BxTxHxK.shape[1], x.k_BxSxHxK.shape[1]
    q_block = min(BLOCK_SIZE, q_length)
    k_block = k_length if spec.normalizes_over_keys else min(BLOCK_SIZE, k_length)
    q_pad, k_pad = -q_length % q_block, -k_length % k_block
    pairs = _block_pairs(
        q_length + q_pad, k_length + k_pad, q_block, k_block, q_offset if causal else None
    )
    run = _scan_of_blocks(spec, causal, pairs, q_block, k_block)
    padded_x = Operands(
        _pad(x.q_BxTxHxK, 1, q_pad, 0),
        _pad(x.k_BxSxHxK, 1, k_pad, 0),
        _pad(x.v_BxSxHxU, 1, k_pad, 0),
        None if x.bias is None else _pad_pairs(x.bias, q_pad, k_pad),
        x.deep_kernel_HxUxU,
    )
    padded_pairing = Pairing(
        _pad(pairing.q_position_T, 0, q_pad, 0),
        _pad(pairing.k_position_S, 0, k_pad, -1),
        _pad_segments(pairing.q_segment_BxT, q_pad),
        _pad_segments(pairing.k_segment_BxS, k_pad),
        None if pairing.dropout is None else _pad_pairs(pairing.dropout, q_pad, k_pad),
    )
    return run(padded_x, padded_pairing)[:, :q_length]


def _pad(x: jax.Array, axis: int, amount: int, value: int) -> jax.Array:
    widths = [(0, amount if index == axis else 0) for index in range(x.ndim)]
    return jnp.pad(x, widths, constant_values=value)


def _pad_segments(segment_BxT: jax.Array | None, amount: int) -> jax.Array | None:
    return None if segment_BxT is None else _pad(segment_BxT, 1, amount, PADDED_SEGMENT)


def _pad_pairs(x: jax.Array, q_pad: int, k_pad: int) -> jax.Array:
    """Pads the query and key axes of an array broadcastable to BxHxTxS where they are not 1."""
    x = x if x.shape[2] == 1 else _pad(x, 2, q_pad, 0)
    return x if x.shape[3] == 1 else _pad(x, 3, k_pad, 0)


def _block_pairs(
    q_length: int, k_length: int, q_block: int, k_block: int, q_offset: int | None
) -> tuple[tuple[int, int], ...]:
    """Starts of every (query block, key block) whose last query may see the first key."""
    return tuple(
        (t, s)
        for t in range(0, q_length, q_block)
        for s in range(0, k_length, k_block)
        if q_offset is None or s <= t + q_block - 1 + q_offset
    )


def _take(x: jax.Array | None, axis: int, start: jax.Array, size: int) -> jax.Array | None:
    """A block of x along an axis; an axis of size 1 broadcasts and is taken whole."""
    if x is None or x.shape[axis] == 1:
        return x
    return jax.lax.dynamic_slice_in_dim(x, start, size, axis)


def _add(total: jax.Array, part: jax.Array, starts: dict[int, jax.Array]) -> jax.Array:
    """Adds a block at the starts of the axes where it is smaller than the total."""
    index = [jnp.int32(0)] * total.ndim
    for axis, start in starts.items():
        if part.shape[axis] < total.shape[axis]:
            index[axis] = start.astype(jnp.int32)
    here = jax.lax.dynamic_slice(total, index, part.shape)
    return jax.lax.dynamic_update_slice(total, here + part.astype(total.dtype), index)


def _slice_operands(x: Operands, t: jax.Array, s: jax.Array, q: int, k: int) -> Operands:
    return Operands(
        jax.lax.dynamic_slice_in_dim(x.q_BxTxHxK, t, q, 1),
        jax.lax.dynamic_slice_in_dim(x.k_BxSxHxK, s, k, 1),
        jax.lax.dynamic_slice_in_dim(x.v_BxSxHxU, s, k, 1),
        _take(_take(x.bias, 2, t, q), 3, s, k),
        x.deep_kernel_HxUxU,
    )


def _slice_pairing(p: Pairing, t: jax.Array, s: jax.Array, q: int, k: int) -> Pairing:
    return Pairing(
        jax.lax.dynamic_slice_in_dim(p.q_position_T, t, q, 0),
        jax.lax.dynamic_slice_in_dim(p.k_position_S, s, k, 0),
        None if p.q_segment_BxT is None else jax.lax.dynamic_slice_in_dim(p.q_segment_BxT, t, q, 1),
        None if p.k_segment_BxS is None else jax.lax.dynamic_slice_in_dim(p.k_segment_BxS, s, k, 1),
        _take(_take(p.dropout, 2, t, q), 3, s, k),
    )


@functools.lru_cache(maxsize=64)
def _scan_of_blocks(
    spec: AttentionSpec,
    causal: bool,
    pairs: tuple[tuple[int, int], ...],
    q_block: int,
    k_block: int,
):
    """The differentiable scan over one fixed list of block pairs."""
    starts: Any = np.asarray(pairs, np.int32)

    def block_at(x: Operands, pairing: Pairing, t: jax.Array, s: jax.Array) -> jax.Array:
        part = _slice_pairing(pairing, t, s, q_block, k_block)
        return attend_block(x, part, spec, causal, apply_values)

    @jax.custom_vjp
    def run(x: Operands, pairing: Pairing) -> jax.Array:
        def add_pair(out: jax.Array, pair: jax.Array) -> tuple[jax.Array, None]:
            t, s = pair
            part = block_at(_slice_operands(x, t, s, q_block, k_block), pairing, t, s)
            return _add(out, part, {1: t}), None

        shape = (*x.q_BxTxHxK.shape[:3], x.v_BxSxHxU.shape[3])
        empty = jnp.zeros(shape, accumulation_dtype(x.v_BxSxHxU))
        return jax.lax.scan(add_pair, empty, starts)[0]

    def forward(x: Operands, pairing: Pairing):
        return run(x, pairing), (x, pairing)

    def backward(saved: tuple[Operands, Pairing], d_out_BxTxHxU: jax.Array):
        x, pairing = saved

        def add_pair(total: Operands, pair: jax.Array) -> tuple[Operands, None]:
            t, s = pair
            _, pull_back = jax.vjp(
                lambda part: block_at(part, pairing, t, s),
                _slice_operands(x, t, s, q_block, k_block),
            )
            (part,) = pull_back(jax.lax.dynamic_slice_in_dim(d_out_BxTxHxU, t, q_block, 1))
            starts_of: tuple[dict[int, jax.Array], ...] = (
                {1: t},
                {1: s},
                {1: s},
                {2: t, 3: s},
                {},
            )
            summed: list[Any] = [
                None if grad is None else _add(cast(jax.Array, sum_), grad, axes)
                for sum_, grad, axes in zip(total, part, starts_of, strict=True)
            ]
            return Operands(*summed), None

        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, accumulation_dtype(leaf)), x)
        grads = jax.lax.scan(add_pair, zeros, starts)[0]
        grads = jax.tree.map(lambda grad, leaf: grad.astype(leaf.dtype), grads, x)
        return grads, jax.tree.map(_no_gradient, pairing)

    run.defvjp(forward, backward)
    return run


def _no_gradient(leaf: jax.Array) -> np.ndarray | jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.zeros_like(leaf)
    return np.zeros(leaf.shape, jax.dtypes.float0)
