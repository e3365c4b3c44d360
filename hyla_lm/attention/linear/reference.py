"""The linear value network in float32 einsums: the definition (paper Eq. 2 to 4)."""

import jax
import jax.numpy as jnp

from hyla_lm.attention.spec import ACTIVATIONS


def apply_values(a_BxHxTxS: jax.Array, v_BxSxHxU: jax.Array, activation: str) -> jax.Array:
    """y[t,h] = sum_s a[h,t,s] phi(v[s,h]), shape BxTxHxU; phi is mostly the identity."""
    return jnp.einsum("bhts,bshu->bthu", a_BxHxTxS, ACTIVATIONS[activation](v_BxSxHxU))
