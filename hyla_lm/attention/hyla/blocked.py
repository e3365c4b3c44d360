"""The hypernetwork value network for one block of pairs, with its gradient laid out by hand.

The mix over the few heads runs as fused multiply-adds; only sums over queries, keys or values are
matrix products. Backward recomputes z twice, once in each order of queries and keys, so that every
product reads its operand in order. About 1.8x faster on CPU than the gradient of the einsums.
"""

from functools import partial

import jax
import jax.numpy as jnp

from hyla_lm.attention.hyla import reference
from hyla_lm.attention.spec import ACTIVATIONS

UNROLLED_HEADS = 32


def apply_values(
    a_BxHxTxS: jax.Array,
    v_BxSxHxU: jax.Array,
    activation: str,
    deep_kernel_HxUxU: jax.Array | None,
) -> jax.Array:
    """See reference.apply_values, which computes the same."""
    if deep_kernel_HxUxU is not None or a_BxHxTxS.shape[1] > UNROLLED_HEADS:
        return reference.apply_values(a_BxHxTxS, v_BxSxHxU, activation, deep_kernel_HxUxU)
    return _apply(activation, a_BxHxTxS, v_BxSxHxU)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _apply(activation: str, a_BxHxTxS: jax.Array, v_BxSxHxU: jax.Array) -> jax.Array:
    z_BxTxSxU = ACTIVATIONS[activation](_mix(a_BxHxTxS, v_BxSxHxU[:, None]))
    return jnp.einsum("bhts,btsu->bthu", a_BxHxTxS, z_BxTxSxU)


def _mix(a_BxHxPxQ: jax.Array, x_BxPxQxHxU: jax.Array) -> jax.Array:
    """sum_h a[h,p,q] x[p,q,h], shape BxPxQxU; x may have size 1 along P or Q."""
    heads = range(a_BxHxPxQ.shape[1])
    return sum((a_BxHxPxQ[:, h, :, :, None] * x_BxPxQxHxU[..., h, :] for h in heads), jnp.zeros(()))


def _forward(activation: str, a_BxHxTxS: jax.Array, v_BxSxHxU: jax.Array):
    return _apply(activation, a_BxHxTxS, v_BxSxHxU), (a_BxHxTxS, v_BxSxHxU)


def _backward(activation: str, saved: tuple[jax.Array, jax.Array], dy_BxTxHxU: jax.Array):
    a_BxHxTxS, v_BxSxHxU = saved
    phi = ACTIVATIONS[activation]
    z_BxTxSxU = phi(_mix(a_BxHxTxS, v_BxSxHxU[:, None]))
    da_read_BxTxSxH = jnp.einsum("btsu,bthu->btsh", z_BxTxSxU, dy_BxTxHxU)
    a_BxHxSxT = jax.lax.optimization_barrier(a_BxHxTxS.swapaxes(2, 3))
    _, pull_back = jax.vjp(phi, _mix(a_BxHxSxT, v_BxSxHxU[:, :, None]))
    (dx_BxSxTxU,) = pull_back(_mix(a_BxHxSxT, dy_BxTxHxU[:, None]))
    dx_BxSxTxU = jax.lax.optimization_barrier(dx_BxSxTxU)
    da_made_BxSxTxH = jnp.einsum("bstu,bshu->bsth", dx_BxSxTxU, v_BxSxHxU)
    dv_BxSxHxU = jnp.einsum("bhst,bstu->bshu", a_BxHxSxT, dx_BxSxTxU)
    da = da_read_BxTxSxH.transpose(0, 3, 1, 2) + da_made_BxSxTxH.transpose(0, 3, 2, 1)
    return da, dv_BxSxHxU


_apply.defvjp(_forward, _backward)
