"""Attention of some queries to some keys: the piece both `reference` and `blocked` are made of."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from hyla_lm.kernels.hyla.reference import apply_values as apply_hypernetwork_values
from hyla_lm.kernels.linear.reference import apply_values as apply_linear_values
from hyla_lm.kernels.scores import accumulation_dtype, normalize, scaled_scores, visible_pairs
from hyla_lm.kernels.spec import AttentionSpec

ValueNetwork = Callable[[jax.Array, jax.Array, str, jax.Array | None], jax.Array]


class Operands(NamedTuple):
    """The differentiable inputs of attention; bias is broadcastable to BxHxTxS."""

    q_BxTxHxK: jax.Array
    k_BxSxHxK: jax.Array
    v_BxSxHxU: jax.Array
    bias: jax.Array | None = None
    deep_kernel_HxUxU: jax.Array | None = None


class Pairing(NamedTuple):
    """What decides which pairs meet: positions, documents, and a multiplier of the code.

    A negative key position marks padding. `dropout` is broadcastable to BxHxTxS and already
    divided by the probability of keeping.
    """

    q_position_T: jax.Array
    k_position_S: jax.Array
    q_segment_BxT: jax.Array | None = None
    k_segment_BxS: jax.Array | None = None
    dropout: jax.Array | None = None


def latent_codes_of(x: Operands, pairing: Pairing, spec: AttentionSpec, causal: bool) -> jax.Array:
    """The normalised scores a_BxHxTxS in float32."""
    visible = visible_pairs(*pairing[:4], causal)
    return normalize(scaled_scores(x.q_BxTxHxK, x.k_BxSxHxK, x.bias), visible, spec.normalization)


def attend_block(
    x: Operands,
    pairing: Pairing,
    spec: AttentionSpec,
    causal: bool,
    hypernetwork_values: ValueNetwork = apply_hypernetwork_values,
) -> jax.Array:
    """Attention by its definition, shape BxTxHxU in the accumulation dtype."""
    a_BxHxTxS = latent_codes_of(x, pairing, spec, causal)
    if pairing.dropout is not None:
        a_BxHxTxS = a_BxHxTxS * pairing.dropout.astype(a_BxHxTxS.dtype)
    v_BxSxHxU = x.v_BxSxHxU.astype(accumulation_dtype(x.v_BxSxHxU))
    if spec.value_network == "linear":
        return apply_linear_values(a_BxHxTxS, v_BxSxHxU, spec.activation)
    return hypernetwork_values(a_BxHxTxS, v_BxSxHxU, spec.activation, x.deep_kernel_HxUxU)
