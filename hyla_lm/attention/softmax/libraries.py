"""Softmax attention by kernels of others: JAX's splash attention on TPU, cuDNN's on GPU.

Splash attention makes no T x T array. cuDNN makes none without documents; they become a mask of all
pairs of positions, which it reads as a bias, as it takes no segments through JAX's public function.
"""

import math
from typing import Literal

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from hyla_lm.attention.lanes import LANES
from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import ACTIVATIONS

MAX_BLOCK = 512
# The backward kernel leaves a gradient of all queries for each of its blocks of keys, and XLA adds
# them up. So many at most: with one for 512 keys, memory would grow with the square of a long row.
MAX_PARTS = 16
MAX_BACKWARD_KEYS = 4096  # of heads up to 128 wide, 1,024 of 256: twice as many do not fit
Implementation = Literal["cudnn", "xla"]
CUDNN_MAX_SIZE, CUDNN_SIZE_STEP = 128, 8
CUDNN_DTYPES = (jnp.bfloat16, jnp.float16)


def splash_supports(request: Request) -> bool:
    """Whether a request is plain softmax attention at an offset known when traced."""
    kind = request.spec.normalization, request.spec.value_network
    return kind == ("softmax", "linear") and request.is_plain and request.q_offset is not None


def attend_splash(request: Request) -> jax.Array:
    """Softmax attention for a supported request, shape BxTxHxU."""
    assert request.q_offset is not None
    batch, q_length, heads, key_dim = request.q_BxTxHxK.shape
    _, k_length, _, value_dim = request.v_BxSxHxU.shape
    q_pad, k_pad = -q_length % LANES, -k_length % LANES
    shape = q_length + q_pad, k_length + k_pad
    causal = masks.CausalMask(shape, offset=request.q_offset)
    kernel = splash.make_splash_mha(
        masks.MultiHeadMask([causal if request.causal else masks.FullMask(shape)] * heads),
        block_sizes=_block_sizes(*shape, max(key_dim, value_dim)),
        head_shards=1,
        q_seq_shards=1,
    )
    segments = None
    if request.segments is not None or k_pad:
        one_document = jnp.zeros((batch, q_length)), jnp.zeros((batch, k_length))
        q_segments, k_segments = request.segments or one_document
        segments = splash.SegmentIds(
            _pad_segments(q_segments, q_pad), _pad_segments(k_segments, k_pad)
        )
    operands = (
        _heads_first(request.q_BxTxHxK * key_dim**-0.5, q_pad),
        _heads_first(request.k_BxSxHxK, k_pad),
        _heads_first(ACTIVATIONS[request.spec.activation](request.v_BxSxHxU), k_pad),
    )
    y_BxHxTxU = jax.vmap(kernel)(*operands, segments)
    return y_BxHxTxU[:, :, :q_length].transpose(0, 2, 1, 3)


def _block_sizes(q_length: int, k_length: int, head_dim: int) -> splash.BlockSizes:
    """The largest blocks of keys and queries up to 512, for 64- and 128-wide heads alike.

    By counted cycles the cheapest are one fused backward kernel and time on lanes.
    """
    block_q, block_k = (
        max(size for size in (128, 256, 384, MAX_BLOCK) if length % size == 0)
        for length in (q_length, k_length)
    )
    minor = splash.QKVLayout.SEQ_MINOR
    return splash.BlockSizes(
        block_q=block_q,
        block_kv=block_k,
        block_kv_compute=block_k,
        block_q_dkv=block_q,
        block_kv_dkv=_backward_keys(k_length, block_k, head_dim),
        block_kv_dkv_compute=block_k,
        use_fused_bwd_kernel=True,
        q_layout=minor,
        k_layout=minor,
        v_layout=minor,
    )


def _backward_keys(k_length: int, block_k: int, head_dim: int) -> int:
    """The fewest blocks of keys that leave at most MAX_PARTS gradients, or as many as fit."""
    blocks = k_length // block_k
    most = MAX_BACKWARD_KEYS // (block_k * math.ceil(head_dim / LANES) ** 2)
    fit = [n for n in range(1, max(1, most) + 1) if blocks % n == 0]
    return block_k * next((n for n in fit if blocks // n <= MAX_PARTS), fit[-1])


def _heads_first(x_BxTxHxK: jax.Array, pad: int) -> jax.Array:
    return jnp.pad(x_BxTxHxK.transpose(0, 2, 1, 3), [(0, 0), (0, 0), (0, pad), (0, 0)])


def _pad_segments(segment_BxT: jax.Array, pad: int) -> jax.Array:
    """Pads with a segment that no token has, so that no query sees a padded key."""
    return jnp.pad(segment_BxT.astype(jnp.int32), [(0, 0), (0, pad)], constant_values=-1)


def cudnn_supports(request: Request) -> bool:
    """Whether cuDNN can do a request: all queries, and no documents in rows of odd length."""
    length, size = request.q_BxTxHxK.shape[1], request.q_BxTxHxK.shape[3]
    return (
        splash_supports(request)
        and request.dtype in CUDNN_DTYPES
        and request.k_BxSxHxK.shape[1] == length
        and request.q_offset == 0
        and request.v_BxSxHxU.shape[3] == size
        and size <= CUDNN_MAX_SIZE
        and size % CUDNN_SIZE_STEP == 0
        and (request.segments is None or length % 2 == 0)
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
