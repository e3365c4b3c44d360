"""Softmax attention on an NVIDIA GPU through cuDNN's flash attention, which JAX calls.

Documents become a mask of all pairs of positions, which cuDNN reads as a bias; it takes no segments
through JAX's public function. Without documents no T x T array is made.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from hyla_lm.attention.request import Request, first_reason
from hyla_lm.attention.softmax import splash_tpu
from hyla_lm.attention.spec import ACTIVATIONS

Implementation = Literal["cudnn", "xla"]
MAX_SIZE, SIZE_STEP = 128, 8
DTYPES = (jnp.bfloat16, jnp.float16)


def unsupported(request: Request) -> str:
    """Why cuDNN cannot do a request; empty if it can."""
    length, size = request.q_BxTxHxK.shape[1], request.q_BxTxHxK.shape[3]
    is_whole = length == request.k_BxSxHxK.shape[1] and request.q_offset == 0
    return splash_tpu.unsupported(request) or first_reason(
        {
            f"{request.dtype} operands": request.dtype not in DTYPES,
            "softmax of queries that are not at all keys": not is_whole,
            f"values of another size than {size}": request.v_BxSxHxU.shape[3] != size,
            f"head sizes above {MAX_SIZE}": size > MAX_SIZE,
            f"head sizes that {SIZE_STEP} does not divide": size % SIZE_STEP != 0,
            "documents in rows of odd length": request.segments is not None and length % 2 == 1,
        }
    )


def attend_cudnn(request: Request, implementation: Implementation = "cudnn") -> jax.Array:
    """Softmax attention for a supported request, shape BxTxHxU; "xla" runs it on any device."""
    phi_v = ACTIVATIONS[request.spec.activation](request.v_BxSxHxU)
    mask_Bx1xTxT = None
    if request.segments is not None:
        q_segment, k_segment = request.segments
        mask_Bx1xTxT = (q_segment[:, :, None] == k_segment[:, None, :])[:, None]
    q, k, v = (x.astype(request.dtype) for x in (request.q_BxTxHxK, request.k_BxSxHxK, phi_v))
    y_BxTxHxU = jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=mask_Bx1xTxT,
        is_causal=request.causal,
        implementation=implementation,
    )
    return y_BxTxHxU.astype(request.v_BxSxHxU.dtype)
