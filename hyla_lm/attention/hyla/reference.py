"""The hypernetwork value network in float32 einsums: the definition (paper Eq. 6, 7 and 10)."""

import jax
import jax.numpy as jnp

from hyla_lm.attention.spec import ACTIVATIONS


def apply_values(
    a_BxHxTxS: jax.Array,
    v_BxSxHxU: jax.Array,
    activation: str,
    deep_kernel_HxUxU: jax.Array | None,
) -> jax.Array:
    """Applies the value network that code a configures for each query and key, and reads it out.

    z[t,s] = phi(sum_h a[h,t,s] v[s,h]) and y[t,h] = sum_s a[h,t,s] z[t,s], shape BxTxHxU. With a
    deep kernel there is a second hidden layer phi(sum_h a[h,t,s] z[t,s] W[h]) (Eq. 10).
    """
    return apply_and_read(a_BxHxTxS, a_BxHxTxS, v_BxSxHxU, activation, deep_kernel_HxUxU)


def apply_and_read(
    a_BxHxTxS: jax.Array,
    read_BxHxTxS: jax.Array,
    v_BxSxHxU: jax.Array,
    activation: str,
    deep_kernel_HxUxU: jax.Array | None,
) -> jax.Array:
    """`apply_values` with another code to read the value network out."""
    z_BxTxSxU = hidden_layers(a_BxHxTxS, v_BxSxHxU, activation, deep_kernel_HxUxU)[-1]
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
