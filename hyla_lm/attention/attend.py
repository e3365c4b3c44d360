"""Softmax, linear and hypernetwork attention behind one signature, and the choice of a kernel.

`KERNELS` is the list of kernels in order of preference.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import jax

from hyla_lm.attention import pairwise_tpu as pairs
from hyla_lm.attention.blocked import attend_blocked
from hyla_lm.attention.chips import platform
from hyla_lm.attention.hyla import pallas_tpu as hyla
from hyla_lm.attention.linear import chunked as linear
from hyla_lm.attention.linear.chunked import attend_from
from hyla_lm.attention.reference import attend_block, attend_by_codes, codes_of, latent_codes_of
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.softmax import libraries, prefixes
from hyla_lm.attention.softmax import whole_tpu as whole
from hyla_lm.attention.spec import ACTIVATIONS, VARIANTS, AttentionSpec, Codes
from hyla_lm.errors import UserError

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

MAX_PAIRS_AT_ONCE = 128 * 128


class Kernel(NamedTuple):
    """One way to compute attention.

    `implementation` is the name that asks for it. `unsupported` says why it cannot do a request, in
    words that follow "cannot do"; empty if it can. `preferred` says whether "auto" takes it for a
    request that it can do.
    """

    name: str
    implementation: str
    unsupported: Callable[[Request], str]
    run: Callable[[Request], jax.Array]
    preferred: Callable[[Request], bool]


def _many_pairs(*platforms: str) -> Callable[[Request], bool]:
    """More pairs than are computed at once, on one of these platforms; on any if none is given."""
    return lambda request: (
        request.pairs > MAX_PAIRS_AT_ONCE and (not platforms or platform() in platforms)
    )


def _many_or_hyla(request: Request) -> bool:
    return request.pairs > MAX_PAIRS_AT_ONCE or request.spec.value_network == "hypernetwork"


def _does_all(request: Request) -> str:
    return ""


_on_tpu, _on_gpu, _on_cpu = map(_many_pairs, ("tpu", "gpu", "cpu"))
_splash = libraries.unsupported_by_splash, libraries.attend_splash
_cudnn = libraries.unsupported_by_cudnn, libraries.attend_cudnn
_prefixes = prefixes.unsupported, prefixes.attend_prefixes
_chunks_of_512 = partial(linear.attend_chunked, chunk_size=512)
KERNELS = (
    Kernel("pallas_hyla", "pallas_tpu", hyla.unsupported, hyla.attend_pallas, _on_tpu),
    Kernel("pallas_softmax", "pallas_tpu", whole.unsupported, whole.attend_whole, _on_tpu),
    Kernel("pallas_pairs", "pallas_tpu", pairs.unsupported, pairs.attend_pairs, _on_tpu),
    Kernel("splash_softmax", "pallas_tpu", *_splash, _on_tpu),
    Kernel("linear_chunks_of_512", "pallas_tpu", linear.unsupported, _chunks_of_512, _on_tpu),
    Kernel("cudnn_softmax", "cudnn_gpu", *_cudnn, _on_gpu),
    Kernel("linear_chunks", "blocked", linear.unsupported, linear.attend_chunked, _many_pairs()),
    Kernel("softmax_prefixes", "blocked", *_prefixes, _on_cpu),
    Kernel("blocked", "blocked", _does_all, attend_blocked, _many_or_hyla),
    Kernel("reference", "reference", _does_all, attend_block, lambda request: True),
)
IMPLEMENTATIONS = ("auto", *dict.fromkeys(kernel.implementation for kernel in reversed(KERNELS)))


def choose(request: Request, implementation: str = "auto") -> Kernel:
    """The first kernel of an implementation, or that "auto" prefers, which can do a request.

    Raises UserError for an unknown implementation and if none of its kernels can do the request.
    """
    if implementation not in IMPLEMENTATIONS:
        raise UserError(
            f"attention implementation {implementation!r} does not exist: use one of "
            f"{', '.join(map(repr, IMPLEMENTATIONS))}.",
            "implementation",
        )
    for kernel in KERNELS:
        asked = kernel.implementation == implementation
        wanted = kernel.preferred(request) if implementation == "auto" else asked
        if wanted and not kernel.unsupported(request):
            return kernel
    raise UserError(
        f"attention implementation {implementation!r} cannot do "
        f"{_reasons(request, implementation)}: use {_alternatives(request)}.",
        "implementation",
    )


def _reasons(request: Request, implementation: str) -> str:
    """The reasons why no kernel of an implementation can do a request, with the kernels' names."""
    names = defaultdict(list)
    for kernel in KERNELS:
        if kernel.implementation == implementation:
            names[kernel.unsupported(request)].append(kernel.name)
    return ", ".join(f"{reason} ({', '.join(those)})" for reason, those in names.items())


def _alternatives(request: Request) -> str:
    able = [kernel.implementation for kernel in KERNELS if not kernel.unsupported(request)]
    return " or ".join(map(repr, dict.fromkeys(able)))


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
    network (spec.py), HxH or BxTxHxH each. Scores, normalisation and sums
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
