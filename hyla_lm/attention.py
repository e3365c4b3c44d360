"""Softmax, linear and hypernetwork attention behind one signature."""

import logging
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from hyla_lm.config import UserError
from hyla_lm.kernels.block import Operands, Pairing, attend_block, latent_codes_of
from hyla_lm.kernels.blocked import attend_blocked
from hyla_lm.kernels.linear.chunked import attend_chunked
from hyla_lm.kernels.spec import ACTIVATIONS, VARIANTS, AttentionSpec
from hyla_lm.kernels.tpu import attend_tpu, obstacle

__all__ = [
    "ACTIVATIONS",
    "IMPLEMENTATIONS",
    "VARIANTS",
    "AttentionSpec",
    "Operands",
    "attend",
    "latent_codes",
]

IMPLEMENTATIONS = ("reference", "blocked", "pallas_tpu")
REFERENCE_MAX_PAIRS = 128 * 128
_logger = logging.getLogger(__name__)
_announced: set[tuple[AttentionSpec, str]] = set()


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
    implementation: str = "auto",
) -> jax.Array:
    """Attention of T queries to S keys, shape BxTxHxU in the dtype of v (paper Eq. 1 to 10).

    q is scaled by 1/sqrt(K); `bias` and `dropout` (a multiplier of the code, already divided by the
    probability of keeping) are broadcastable to BxHxTxS; `segment_ids` (BxS, never decreasing)
    hide other documents; query t stands at position t + q_offset. Scores, normalisation and sums
    are float32. Raises UserError for shapes that do not fit and implementations that cannot.
    """
    _check_shapes(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU, spec, deep_kernel_HxUxU)
    x = Operands(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU, bias, deep_kernel_HxUxU)
    known_offset = q_offset if isinstance(q_offset, int) else None
    pairing = _pairing(x, segment_ids, q_offset, dropout)
    chosen = resolve_implementation(
        spec,
        implementation,
        q_BxTxHxK.shape[1],
        k_BxSxHxK.shape[1],
        obstacle(x, pairing, spec, causal, q_offset),
    )
    if chosen == "pallas_tpu":
        out = attend_tpu(x, pairing, spec, causal, q_offset)
    elif chosen == "reference":
        out = attend_block(x, pairing, spec, causal)
    elif _chunks_exactly(x, spec, causal, known_offset, dropout):
        out = attend_chunked(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU, spec.activation, segment_ids)
    else:
        out = attend_blocked(x, pairing, spec, causal, known_offset)
    return out.astype(v_BxSxHxU.dtype)


def latent_codes(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    spec: AttentionSpec,
    *,
    bias: jax.Array | None = None,
    causal: bool = False,
    segment_ids: jax.Array | None = None,
) -> jax.Array:
    """The latent code of every query and key, the normalised scores a_BxHxTxS in float32."""
    x = Operands(q_BxTxHxK, k_BxSxHxK, k_BxSxHxK, bias)
    return latent_codes_of(x, _pairing(x, segment_ids, 0, None), spec, causal)


def resolve_implementation(
    spec: AttentionSpec, implementation: str, q_length: int, k_length: int, tpu_obstacle: str = ""
) -> str:
    """Checks a requested implementation, or picks one and logs the choice once.

    `blocked` saves time and memory, but for small matrices of attention without a hypernetwork; on
    TPU `pallas_tpu` does what it has no obstacle for, but for matrices smaller than its blocks.
    """
    if implementation == "pallas_tpu" and tpu_obstacle:
        raise UserError(
            f"attention implementation 'pallas_tpu' cannot do {tpu_obstacle}: "
            "use 'blocked' or 'reference' (ModelConfig.attention_implementation)."
        )
    if implementation in IMPLEMENTATIONS:
        return implementation
    if implementation != "auto":
        names = ", ".join(repr(name) for name in ("auto", *IMPLEMENTATIONS))
        raise UserError(
            f"ModelConfig.attention_implementation = {implementation!r} cannot compute {spec}: "
            f"use one of {names}."
        )
    is_small = q_length * k_length <= REFERENCE_MAX_PAIRS
    chosen = "reference" if is_small and spec.value_network == "linear" else "blocked"
    if on_tpu() and not is_small and not tpu_obstacle:
        chosen = "pallas_tpu"
    if (spec, chosen) not in _announced:
        _announced.add((spec, chosen))
        _logger.info("attention %s runs as %s", spec, chosen)
    return chosen


def on_tpu() -> bool:
    """Whether what is traced now will run on TPU: by the mesh in use, else by JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return (jax.default_backend() if device is None else device.platform) == "tpu"


def _chunks_exactly(
    x: Operands,
    spec: AttentionSpec,
    causal: bool,
    q_offset: int | None,
    dropout: jax.Array | None,
) -> bool:
    is_linear = spec.normalization == "identity" and spec.value_network == "linear"
    plain = x.bias is None and dropout is None and causal and q_offset == 0
    return is_linear and plain and x.q_BxTxHxK.shape[1] == x.k_BxSxHxK.shape[1]


def _pairing(
    x: Operands,
    segment_ids_BxS: jax.Array | None,
    q_offset: int | jax.Array,
    dropout: jax.Array | None,
) -> Pairing:
    q_length, k_length = x.q_BxTxHxK.shape[1], x.k_BxSxHxK.shape[1]
    q_segment = None
    if segment_ids_BxS is not None:
        q_segment = jax.lax.dynamic_slice_in_dim(segment_ids_BxS, q_offset, q_length, 1)
    q_position = jnp.arange(q_length) + q_offset
    return Pairing(q_position, jnp.arange(k_length), q_segment, segment_ids_BxS, dropout)


def _check_shapes(
    q: jax.Array, k: jax.Array, v: jax.Array, spec: AttentionSpec, deep_kernel: jax.Array | None
) -> None:
    shapes: Sequence[tuple[int, ...]] = (q.shape, k.shape, v.shape)
    batch, _, heads, head_dim = q.shape
    if k.shape[::2] != (batch, heads) or k.shape[3] != head_dim or v.shape[:3] != k.shape[:3]:
        raise UserError(f"attend: q, k, v have shapes {shapes}; want BxTxHxK, BxSxHxK, BxSxHxU.")
    if (spec.value_depth == 2) != (deep_kernel is not None):
        raise UserError(f"attend: deep_kernel_HxUxU goes with value_depth 2, not {spec}.")
