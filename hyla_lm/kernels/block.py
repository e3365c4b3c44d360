"""Attention of one block of queries to one block of keys; `reference` and `blocked` use it."""

from collections.abc import Callable

import jax

from hyla_lm.kernels.hyla.reference import apply_values as apply_hypernetwork_values
from hyla_lm.kernels.linear.reference import apply_values as apply_linear_values
from hyla_lm.kernels.request import Request
from hyla_lm.kernels.scores import accumulation_dtype, normalize, scaled_scores, visible_pairs

ValueNetwork = Callable[[jax.Array, jax.Array, str, jax.Array | None], jax.Array]


def latent_codes_of(r: Request) -> jax.Array:
    """The normalised scores a_BxHxTxS in float32."""
    visible = visible_pairs(r.q_position_T, r.k_position_S, r.segments, r.causal)
    scores = scaled_scores(r.q_BxTxHxK, r.k_BxSxHxK, r.bias)
    return normalize(scores, visible, r.spec.normalization)


def attend_block(
    r: Request, hypernetwork_values: ValueNetwork = apply_hypernetwork_values
) -> jax.Array:
    """Attention by its definition, shape BxTxHxU in the accumulation dtype."""
    a_BxHxTxS = latent_codes_of(r)
    if r.dropout is not None:
        a_BxHxTxS = a_BxHxTxS * r.dropout.astype(a_BxHxTxS.dtype)
    v_BxSxHxU = r.v_BxSxHxU.astype(accumulation_dtype(r.v_BxSxHxU))
    if r.spec.value_network == "linear":
        return apply_linear_values(a_BxHxTxS, v_BxSxHxU, r.spec.activation)
    return hypernetwork_values(a_BxHxTxS, v_BxSxHxU, r.spec.activation, r.deep_kernel_HxUxU)
