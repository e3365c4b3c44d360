"""What runs on TPU as `pallas_tpu`: our kernels for HYLA and softmax, chunks for linear."""

from typing import Any

import jax

from hyla_lm.kernels.block import Operands, Pairing
from hyla_lm.kernels.hyla import pallas_tpu as hyla
from hyla_lm.kernels.linear.chunked import attend_chunked
from hyla_lm.kernels.softmax import whole_tpu
from hyla_lm.kernels.softmax.splash_tpu import attend_splash
from hyla_lm.kernels.spec import AttentionSpec

LINEAR_CHUNK_SIZE = 512


def obstacle(x: Operands, pairing: Pairing, spec: AttentionSpec, causal: bool, offset: Any) -> str:
    """Why `pallas_tpu` cannot do a request, in words that follow "cannot do"; empty if it can."""
    for name, value in (("a bias", x.bias), ("dropout", pairing.dropout)):
        if value is not None:
            return name
    if spec.value_network == "hypernetwork":
        return hyla.obstacle(x, spec)
    if spec.normalization == "softmax":
        return "" if isinstance(offset, int) else "softmax at an offset known only at run time"
    if spec.normalization == "identity":
        same_length = x.q_BxTxHxK.shape[1] == x.k_BxSxHxK.shape[1]
        plain = causal and same_length and isinstance(offset, int) and offset == 0
        return "" if plain else "linear attention that is not causal from the first token"
    return f"normalization {spec.normalization!r} with a linear value network"


def attend_tpu(
    x: Operands, pairing: Pairing, spec: AttentionSpec, causal: bool, offset: int | jax.Array
) -> jax.Array:
    """Attention without T x T arrays for a request without obstacle, shape BxTxHxU."""
    q, k, v = x.q_BxTxHxK, x.k_BxSxHxK, x.v_BxSxHxU
    segments = None
    if pairing.q_segment_BxT is not None and pairing.k_segment_BxS is not None:
        segments = (pairing.q_segment_BxT, pairing.k_segment_BxS)
    if spec.value_network == "hypernetwork":
        return hyla.attend_pallas(q, k, v, spec, causal, segments, offset)
    if spec.normalization == "softmax":
        assert isinstance(offset, int)
        attend = whole_tpu.attend_whole if whole_tpu.fits(q, k, v) else attend_splash
        return attend(q, k, v, spec.activation, causal, segments, offset)
    return attend_chunked(q, k, v, spec.activation, pairing.k_segment_BxS, LINEAR_CHUNK_SIZE)
