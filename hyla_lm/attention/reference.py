"""Attention by its definition, in float32: scores, masks, codes and value networks.

It is called with all queries and keys, or with a block of each (blocked.py).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import ACTIVATIONS, RMS_HEAD_EPSILON, Codes

ValueNetwork = Callable[[Codes, jax.Array, str, jax.Array | None], jax.Array]


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


def over_visible_keys(s_BxHxTxS: jax.Array, visible: jax.Array) -> jax.Array:
    """exp(s) over its sum along the visible keys; 0 where hidden, also if a query sees nothing."""
    hidden = jnp.finfo(s_BxHxTxS.dtype).min
    a_BxHxTxS = jax.nn.softmax(jnp.where(visible, s_BxHxTxS, hidden), axis=-1)
    return jnp.where(visible, a_BxHxTxS, 0)


def codes_of(r: Request) -> Codes:
    """The codes of a request without dropout, each BxHxTxS in float32."""
    visible = visible_pairs(r.q_position_T, r.k_position_S, r.segments, r.causal)
    s_BxHxTxS = scaled_scores(r.q_BxTxHxK, r.k_BxSxHxK, r.bias)
    network, weights = r.spec.pair_network, r.weights_BxNxT
    if network is None:
        return Codes(normalize(s_BxHxTxS, visible, r.spec.normalization))
    batch, _, q_length, k_length = s_BxHxTxS.shape
    visible_BxSxT = jnp.broadcast_to(visible[:, 0], (batch, q_length, k_length)).swapaxes(1, 2)
    if weights is not None:
        rows = weights.astype(s_BxHxTxS.dtype)[:, :, None]
        weights = jnp.broadcast_to(rows, (batch, *rows.shape[1:]))
    codes = jax.vmap(network.at)(s_BxHxTxS.swapaxes(2, 3), visible_BxSxT, weights)
    return jax.tree.map(lambda x: x.swapaxes(2, 3), codes)


def hypernetwork_values(
    codes: Codes, v_BxSxHxU: jax.Array, activation: str, deep_kernel_HxUxU: jax.Array | None
) -> jax.Array:
    """Applies the value network that codes configure for each query and key, and reads it out.

    z[t,s] = phi(sum_h a[h,t,s] v[s,h]) and y[t,h] = sum_s a[h,t,s] z[t,s], shape BxTxHxU. With a
    deep kernel there is a second hidden layer phi(sum_h a[h,t,s] z[t,s] W[h]) (Eq. 10).
    """
    made_BxHxTxS, read_BxHxTxS = codes
    z_BxTxSxU = hidden_layers(made_BxHxTxS, v_BxSxHxU, activation, deep_kernel_HxUxU)[-1]
    if read_BxHxTxS is None:
        read_BxHxTxS = made_BxHxTxS
    return jnp.einsum("bhts,btsu->bthu", read_BxHxTxS, z_BxTxSxU)


def hidden_layers(
    a_BxHxTxS: jax.Array,
    v_BxSxHxU: jax.Array,
    activation: str,
    deep_kernel_HxUxU: jax.Array | None,
) -> list[jax.Array]:
    """The units z_BxTxSxU of each hidden layer of the value network: one, or two for Eq. 10."""
    phi = ACTIVATIONS[activation]
    z_BxTxSxU = phi(jnp.einsum("bhts,bshu->btsu", a_BxHxTxS, v_BxSxHxU))
    if deep_kernel_HxUxU is None:
        return [z_BxTxSxU]
    second = jnp.einsum("bhts,btsu,huw->btsw", a_BxHxTxS, z_BxTxSxU, deep_kernel_HxUxU)
    return [z_BxTxSxU, phi(second)]


def attend_block(r: Request, values: ValueNetwork = hypernetwork_values) -> jax.Array:
    """Attention by its definition, shape BxTxHxU in the accumulation dtype."""
    codes = codes_of(r)
    if r.dropout is not None:
        dropout = r.dropout
        codes = jax.tree.map(lambda a_BxHxTxS: a_BxHxTxS * dropout.astype(a_BxHxTxS.dtype), codes)
    return attend_by_codes(r, codes, values)


def attend_by_codes(
    r: Request, codes: Codes, values: ValueNetwork = hypernetwork_values
) -> jax.Array:
    """Attention to the request's values by these codes, each BxHxTxS; shape BxTxHxU.

    The request's queries, keys, bias and dropout do nothing here: codes are used as they are.
    """
    v_BxSxHxU = r.v_BxSxHxU.astype(accumulation_dtype(r.v_BxSxHxU))
    if r.spec.value_network == "hypernetwork":
        return values(codes, v_BxSxHxU, r.spec.activation, r.deep_kernel_HxUxU)
    made, read = codes
    a_BxHxTxS = made if read is None else read
    return jnp.einsum("bhts,bshu->bthu", a_BxHxTxS, ACTIVATIONS[r.spec.activation](v_BxSxHxU))
