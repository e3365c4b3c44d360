"""Softmax, linear and hypernetwork attention behind one signature."""

from collections.abc import Mapping
from types import MappingProxyType

import jax

from hyla_lm.attention.block import attend_by_codes, codes_of, latent_codes_of
from hyla_lm.attention.linear.recurrent import attend_from
from hyla_lm.attention.pairwise import Codes
from hyla_lm.attention.registry import choose
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.spec import ACTIVATIONS, VARIANTS, AttentionSpec

__all__ = [
    "ACTIVATIONS",
    "VARIANTS",
    "AttentionSpec",
    "Codes",
    "Request",
    "attend",
    "attend_by_codes",
    "attend_from",
    "attend_request",
    "choose",
    "codes_of",
    "latent_codes",
    "latent_codes_of",
    "make_request",
]


def attend(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    v_BxSxHxU: jax.Array,
    spec: AttentionSpec,
    *,
    bias: jax.Array | None = None,
    causal: bool = False,
    segment_ids: jax.Array | None = None,
    q_offset: int | jax.Array = 0,
    deep_kernel_HxUxU: jax.Array | None = None,
    dropout: jax.Array | None = None,
    weights: Mapping[str, jax.Array] = MappingProxyType({}),
    implementation: str = "auto",
) -> jax.Array:
    """Attention of T queries to S keys, shape BxTxHxU in the dtype of v (paper Eq. 1 to 10).

    q is scaled by 1/sqrt(K); `bias` and `dropout` (a multiplier of the code, already divided by the
    probability of keeping) are broadcastable to BxHxTxS; `segment_ids` (BxS, never decreasing)
    hide other documents; query t stands at position t + q_offset; `weights` are those of a pair
    network (kernels/pairwise.py), HxH or BxTxHxH each. Scores, normalisation and sums
    are float32. Raises UserError for shapes that do not fit and for an implementation that cannot
    compute the request.
    """
    request = make_request(
        q_BxTxHxK,
        k_BxSxHxK,
        v_BxSxHxU,
        spec,
        bias=bias,
        causal=causal,
        segment_ids=segment_ids,
        q_offset=q_offset,
        deep_kernel_HxUxU=deep_kernel_HxUxU,
        dropout=dropout,
        weights=weights,
    )
    return attend_request(request, implementation)


def attend_request(request: Request, implementation: str = "auto") -> jax.Array:
    """`attend` for a finished request; raises UserError if the implementation cannot do it."""
    kernel = choose(request, implementation)
    with jax.named_scope(kernel.name):
        y_BxTxHxU = kernel.run(request)
    return y_BxTxHxU.astype(request.v_BxSxHxU.dtype)


def latent_codes(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    spec: AttentionSpec,
    *,
    bias: jax.Array | None = None,
    causal: bool = False,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """The latent code of every query and key, the normalised scores a_BxHxTxS in float32.

    The code depends neither on the values nor on the value network.
    """
    linear = AttentionSpec(spec.normalization, "linear")
    return latent_codes_of(
        make_request(
            q_BxTxHxK,
            k_BxSxHxK,
            k_BxSxHxK,
            linear,
            bias=bias,
            causal=causal,
            segment_ids=segment_ids,
        )
    )
