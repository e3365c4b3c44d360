"""Positions: rotary embeddings and T5 relative position buckets."""

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.platform import platform

ROTARY_BASE = 10_000.0


def rotate(x_BxTxHxK: jax.Array, position_BxT: jax.Array, base: float = ROTARY_BASE) -> jax.Array:
    """Rotary embedding (Su et al.): dimension i is paired with i + K/2; angles in float32."""
    half = x_BxTxHxK.shape[-1] // 2
    if x_BxTxHxK.shape[-1] % 2:
        raise ValueError(f"rotary positions need an even head size, not {x_BxTxHxK.shape[-1]}")
    frequency_K2 = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = position_BxT[:, :, None, None].astype(jnp.float32) * frequency_K2
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x = x_BxTxHxK.astype(jnp.float32)
    if platform() == "cpu":  # one roll is a third of the time; on TPU two halves are less
        cos_K, sin_K = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
        return (x * cos_K + jnp.roll(x, half, axis=-1) * sin_K).astype(x_BxTxHxK.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxTxHxK.dtype)


def relative_buckets(
    q_position_T: jax.Array,
    k_position_S: jax.Array,
    num_buckets: int,
    max_distance: int,
    bidirectional: bool = False,
) -> jax.Array:
    """T5's bucket of every query and key, int32 of shape TxS (Raffel et al.).

    If not bidirectional, keys after the query share bucket 0 with the query itself.
    """
    distance_TxS = q_position_T[:, None] - k_position_S[None, :]
    offset = jnp.zeros_like(distance_TxS)
    if bidirectional:
        num_buckets //= 2
        offset = jnp.where(distance_TxS < 0, num_buckets, 0)
        distance_TxS = jnp.abs(distance_TxS)
    n = jnp.maximum(distance_TxS, 0)
    exact = num_buckets // 2
    ratio = n.astype(jnp.float32) / exact + np.finfo(np.float32).eps
    steps = jnp.log(ratio) / np.log(max_distance / exact) * (num_buckets - exact)
    far = jnp.minimum(exact + steps.astype(jnp.int32), num_buckets - 1)
    return offset + jnp.where(n < exact, n, far)
