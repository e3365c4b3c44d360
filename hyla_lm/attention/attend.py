"""Softmax, linear and hypernetwork attention behind one signature, and the choice of a kernel.

`KERNELS` is the list of kernels in order of preference.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax

from hyla_lm.attention import pairwise_tpu as pairs
from hyla_lm.attention.blocked import attend_blocked
from hyla_lm.attention.chips import platform
from hyla_lm.attention.hyla import pallas_tpu as hyla
from hyla_lm.attention.linear import chunked as linear
from hyla_lm.attention.reference import attend_block, codes_of
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.softmax import libraries, prefixes
from hyla_lm.attention.softmax import whole_tpu as whole
from hyla_lm.attention.spec import AttentionSpec
from hyla_lm.errors import UserError

MAX_PAIRS_AT_ONCE = 128 * 128


class Kernel(NamedTuple):
    """One way to compute attention.

    `implementation` is the name that asks for it. "auto" takes it on `platform`, or on any if that
    is None. `supports` says whether it can do a request.
    """

    name: str
    implementation: str
    platform: str | None
    supports: Callable[[Request], bool]
    run: Callable[[Request], jax.Array]


def _all(request: Request) -> bool:
    return True


_splash = libraries.splash_supports, libraries.attend_splash
_cudnn = libraries.cudnn_supports, libraries.attend_cudnn
_chunks_of_512 = partial(linear.attend_chunked, chunk_size=512)
KERNELS = (
    Kernel("pallas_hyla", "pallas_tpu", "tpu", hyla.supports, hyla.attend_pallas),
    Kernel("pallas_softmax", "pallas_tpu", "tpu", whole.supports, whole.attend_whole),
    Kernel("pallas_pairs", "pallas_tpu", "tpu", pairs.supports, pairs.attend_pairs),
    Kernel("splash_softmax", "pallas_tpu", "tpu", *_splash),
    Kernel("linear_chunks_of_512", "pallas_tpu", "tpu", linear.supports, _chunks_of_512),
    Kernel("cudnn_softmax", "cudnn_gpu", "gpu", *_cudnn),
    Kernel("linear_chunks", "blocked", None, linear.supports, linear.attend_chunked),
    Kernel("softmax_prefixes", "blocked", "cpu", prefixes.supports, prefixes.attend_prefixes),
    Kernel("blocked", "blocked", None, _all, attend_blocked),
    Kernel("reference", "reference", None, _all, attend_block),
)
IMPLEMENTATIONS = ("auto", *dict.fromkeys(kernel.implementation for kernel in reversed(KERNELS)))


def choose(request: Request, implementation: str = "auto") -> Kernel:
    """The first kernel of an implementation, or that "auto" takes, which can do a request.

    Of few pairs "auto" computes all at once, but for hypernetworks, whose units a pair are many.
    Raises UserError if no kernel of the implementation can do the request.
    """
    if implementation != "auto":
        candidates = [kernel for kernel in KERNELS if kernel.implementation == implementation]
    elif request.q_BxTxHxK.shape[1] * request.k_BxSxHxK.shape[1] > MAX_PAIRS_AT_ONCE:
        candidates = [kernel for kernel in KERNELS if kernel.platform in (None, platform())]
    else:
        small = "blocked" if request.spec.value_network == "hypernetwork" else "reference"
        candidates = [kernel for kernel in KERNELS if kernel.name == small]
    for kernel in candidates:
        if kernel.supports(request):
            return kernel
    raise UserError(
        f"ModelConfig.attention_implementation = {implementation!r} cannot do attention of this "
        "kind, size or dtype, with this bias or dropout: use 'blocked' or 'reference'."
    )


def attend(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    v_BxSxHxU: jax.Array,
    spec: AttentionSpec,
    *,
    implementation: str = "auto",
    **options: Any,
) -> jax.Array:
    """Attention of T queries to S keys, shape BxTxHxU in the dtype of v (paper Eq. 1 to 10).

    q is scaled by 1/sqrt(K). `options` are those of `make_request`: bias, causal, segment_ids,
    q_offset, deep_kernel_HxUxU, dropout and weights. Scores, normalisation and sums are float32.
    Raises UserError for shapes that do not fit and for an implementation that cannot compute the
    request.
    """
    return attend_request(
        make_request(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU, spec, **options), implementation
    )


def attend_request(request: Request, implementation: str = "auto") -> jax.Array:
    """`attend` for a finished request; raises UserError if the implementation cannot do it."""
    kernel = choose(request, implementation)
    with jax.named_scope(kernel.name):
        y_BxTxHxU = kernel.run(request)
    return y_BxTxHxU.astype(request.v_BxSxHxU.dtype)


def latent_codes(
    q_BxTxHxK: jax.Array, k_BxSxHxK: jax.Array, spec: AttentionSpec, **options: Any
) -> jax.Array:
    """The latent code of every query and key, the normalised scores a_BxHxTxS in float32.

    `options` are those of `make_request`. The code depends neither on the values nor on the value
    network.
    """
    linear = AttentionSpec(spec.normalization, "linear")
    request = make_request(q_BxTxHxK, k_BxSxHxK, k_BxSxHxK, linear, **options)
    return codes_of(request).made_HxSxT
