"""Causal linear attention that goes on from a state: constant memory and time a token."""

import jax
import jax.numpy as jnp

from hyla_lm.attention.scores import accumulation_dtype
from hyla_lm.attention.spec import ACTIVATIONS


def attend_from(
    state_BxHxKxU: jax.Array,
    q_BxTxHxK: jax.Array,
    k_BxTxHxK: jax.Array,
    v_BxTxHxU: jax.Array,
    activation: str,
) -> tuple[jax.Array, jax.Array]:
    """The attention of T new tokens, BxTxHxU in float32, and the state after them.

    The state is sum_s k[s] phi(v[s])^T over the tokens before; it starts as zeros.
    """
    dtype = accumulation_dtype(q_BxTxHxK)
    length, head_dim = q_BxTxHxK.shape[1], q_BxTxHxK.shape[3]
    q, k = q_BxTxHxK.astype(dtype) * head_dim**-0.5, k_BxTxHxK.astype(dtype)
    v = ACTIVATIONS[activation](v_BxTxHxU.astype(dtype))
    visible_TxT = jnp.tril(jnp.ones((length, length), bool))
    a_BxHxTxT = jnp.where(visible_TxT, jnp.einsum("bthk,bshk->bhts", q, k), 0)
    y_BxTxHxU = jnp.einsum("bhts,bshu->bthu", a_BxHxTxT, v)
    y_BxTxHxU += jnp.einsum("bthk,bhku->bthu", q, state_BxHxKxU)
    return y_BxTxHxU, state_BxHxKxU + jnp.einsum("bshk,bshu->bhku", k, v)
