"""The latent code of queries and keys: scaled scores, masks and normalisation (paper Eq. 1)."""

import jax
import jax.numpy as jnp

from hyla_lm.attention.pairwise import RMS_HEAD_EPSILON
from hyla_lm.attention.softmax.reference import over_visible_keys


def accumulation_dtype(x: jax.Array) -> jnp.dtype:
    """float32, or float64 if the input is float64."""
    return jnp.promote_types(x.dtype, jnp.float32)


def visible_pairs(
    q_position_T: jax.Array,
    k_position_S: jax.Array,
    segments: tuple[jax.Array, jax.Array] | None,
    causal: bool,
) -> jax.Array:
    """Which keys a query may see, shape (1 or B, 1, T, S); a negative key position is padding."""
    visible = jnp.broadcast_to(k_position_S >= 0, (1, 1, q_position_T.size, k_position_S.size))
    if causal:
        visible &= k_position_S <= q_position_T[:, None]
    if segments is not None:
        q_segment_BxT, k_segment_BxS = segments
        visible &= (q_segment_BxT[:, :, None] == k_segment_BxS[:, None, :])[:, None]
    return visible


def scaled_scores(q_BxTxHxK: jax.Array, k_BxSxHxK: jax.Array, bias: jax.Array | None) -> jax.Array:
    """q.k / sqrt(K) + bias in float32, shape BxHxTxS (Eq. 1)."""
    dtype = accumulation_dtype(q_BxTxHxK)
    q = q_BxTxHxK.astype(dtype) * q_BxTxHxK.shape[-1] ** -0.5
    s_BxHxTxS = jnp.einsum("bthk,bshk->bhts", q, k_BxSxHxK.astype(dtype))
    return s_BxHxTxS if bias is None else s_BxHxTxS + bias.astype(dtype)


def normalize(s_BxHxTxS: jax.Array, visible: jax.Array, normalization: str) -> jax.Array:
    """The latent code a: hidden pairs are exactly 0; a query that sees nothing gets all zeros."""
    if normalization.startswith("softmax"):
        a_BxHxTxS = over_visible_keys(s_BxHxTxS, visible)
    else:
        a_BxHxTxS = jnp.where(visible, s_BxHxTxS, 0)
    if normalization.endswith("rms_head"):
        mean_square = jnp.mean(jnp.square(a_BxHxTxS), axis=1, keepdims=True)
        a_BxHxTxS = a_BxHxTxS * jax.lax.rsqrt(mean_square + RMS_HEAD_EPSILON)
    return a_BxHxTxS
