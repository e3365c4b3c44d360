"""Softmax over the keys that a query sees, in float32: the definition."""

import jax
import jax.numpy as jnp


def over_visible_keys(s_BxHxTxS: jax.Array, visible: jax.Array) -> jax.Array:
    """exp(s) over its sum along the visible keys; 0 where hidden, also if a query sees nothing."""
    hidden = jnp.finfo(s_BxHxTxS.dtype).min
    a_BxHxTxS = jax.nn.softmax(jnp.where(visible, s_BxHxTxS, hidden), axis=-1)
    return jnp.where(visible, a_BxHxTxS, 0)
