"""Attention of one block of queries to one block of keys; `reference` and `blocked` use it."""

from collections.abc import Callable

import jax

from hyla_lm.attention.hyla.reference import apply_and_read
from hyla_lm.attention.hyla.reference import apply_values as apply_hypernetwork_values
from hyla_lm.attention.linear.reference import apply_values as apply_linear_values
from hyla_lm.attention.pairwise import Codes, codes_of_rows
from hyla_lm.attention.request import Request
from hyla_lm.attention.scores import accumulation_dtype, normalize, scaled_scores, visible_pairs

ValueNetwork = Callable[[jax.Array, jax.Array, str, jax.Array | None], jax.Array]


def latent_codes_of(r: Request) -> jax.Array:
    """The normalised scores a_BxHxTxS in float32."""
    return codes_of(r).made_HxSxT


def codes_of(r: Request) -> Codes:
    """The codes of a request without dropout, each BxHxTxS in float32."""
    visible = visible_pairs(r.q_position_T, r.k_position_S, r.segments, r.causal)
    scores = scaled_scores(r.q_BxTxHxK, r.k_BxSxHxK, r.bias)
    if r.spec.pair_network is not None:
        return codes_of_rows(r.spec.pair_network, scores, visible, r.weights_BxNxT)
    return Codes(normalize(scores, visible, r.spec.normalization))


def attend_block(
    r: Request, hypernetwork_values: ValueNetwork = apply_hypernetwork_values
) -> jax.Array:
    """Attention by its definition, shape BxTxHxU in the accumulation dtype."""
    codes = codes_of(r)
    if r.dropout is not None:
        dropout = r.dropout
        codes = jax.tree.map(lambda a_BxHxTxS: a_BxHxTxS * dropout.astype(a_BxHxTxS.dtype), codes)
    return attend_by_codes(r, codes, hypernetwork_values)


def attend_by_codes(
    r: Request, codes: Codes, hypernetwork_values: ValueNetwork = apply_hypernetwork_values
) -> jax.Array:
    """Attention to the request's values by these codes, each BxHxTxS; shape BxTxHxU.

    The request's queries, keys, bias and dropout do nothing here: codes are used as they are.
    """
    made, read = codes
    v_BxSxHxU = r.v_BxSxHxU.astype(accumulation_dtype(r.v_BxSxHxU))
    if r.spec.value_network == "linear":
        return apply_linear_values(made if read is None else read, v_BxSxHxU, r.spec.activation)
    if read is None:
        return hypernetwork_values(made, v_BxSxHxU, r.spec.activation, r.deep_kernel_HxUxU)
    return apply_and_read(made, read, v_BxSxHxU, r.spec.activation, r.deep_kernel_HxUxU)
