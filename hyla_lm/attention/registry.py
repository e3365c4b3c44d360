"""The list of kernels in order of preference, and the choice among them."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax

from hyla_lm.attention import pairwise_tpu as pairs
from hyla_lm.attention.block import attend_block
from hyla_lm.attention.blocked import attend_blocked
from hyla_lm.attention.hyla import pallas_tpu as hyla
from hyla_lm.attention.linear import chunked as linear
from hyla_lm.attention.platform import platform
from hyla_lm.attention.request import Request
from hyla_lm.attention.softmax import cudnn_gpu as cudnn
from hyla_lm.attention.softmax import prefixes
from hyla_lm.attention.softmax import splash_tpu as splash
from hyla_lm.attention.softmax import whole_tpu as whole
from hyla_lm.errors import UserError

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


def _many_pairs(request: Request) -> bool:
    return request.pairs > MAX_PAIRS_AT_ONCE


def _many_on_tpu(request: Request) -> bool:
    return _many_pairs(request) and platform() == "tpu"


def _many_on_gpu(request: Request) -> bool:
    return _many_pairs(request) and platform() == "gpu"


def _many_on_cpu(request: Request) -> bool:
    return _many_pairs(request) and platform() == "cpu"


def _many_or_hyla(request: Request) -> bool:
    return _many_pairs(request) or request.spec.value_network == "hypernetwork"


def _always(request: Request) -> bool:
    return True


def _does_all(request: Request) -> str:
    return ""


_chunks_of_512 = partial(linear.attend_chunked, chunk_size=512)
KERNELS = (
    Kernel("pallas_hyla", "pallas_tpu", hyla.unsupported, hyla.attend_pallas, _many_on_tpu),
    Kernel("pallas_softmax", "pallas_tpu", whole.unsupported, whole.attend_whole, _many_on_tpu),
    Kernel("pallas_pairs", "pallas_tpu", pairs.unsupported, pairs.attend_pairs, _many_on_tpu),
    Kernel("splash_softmax", "pallas_tpu", splash.unsupported, splash.attend_splash, _many_on_tpu),
    Kernel("linear_chunks_of_512", "pallas_tpu", linear.unsupported, _chunks_of_512, _many_on_tpu),
    Kernel("cudnn_softmax", "cudnn_gpu", cudnn.unsupported, cudnn.attend_cudnn, _many_on_gpu),
    Kernel("linear_chunks", "blocked", linear.unsupported, linear.attend_chunked, _many_pairs),
    Kernel(
        "softmax_prefixes", "blocked", prefixes.unsupported, prefixes.attend_prefixes, _many_on_cpu
    ),
    Kernel("blocked", "blocked", _does_all, attend_blocked, _many_or_hyla),
    Kernel("reference", "reference", _does_all, attend_block, _always),
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
