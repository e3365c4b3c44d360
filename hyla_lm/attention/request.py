"""The request: all operands of one attention call, as one pytree from the model to the kernel."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention.spec import AttentionSpec
from hyla_lm.errors import UserError

# The axes of each array, in the letters of README.md; the other fields are static.
AXES: Mapping[str, str] = {
    "q_BxTxHxK": "BTHK",
    "k_BxSxHxK": "BSHK",
    "v_BxSxHxU": "BSHU",
    "bias": "BHTS",
    "deep_kernel_HxUxU": "HUU",
    "dropout": "BHTS",
    "weights_BxNxT": "BNT",
    "q_position_T": "T",
    "k_position_S": "S",
    "q_segment_BxT": "BT",
    "k_segment_BxS": "BS",
}


@dataclass(frozen=True)
class Request:
    """The operands of attention of T queries to S keys; README.md defines the result.

    `weights_BxNxT` of a pair network are broadcastable along B and T. A negative key position marks
    padding. `q_offset` is the position of the first query, or None if it is not known when traced.
    """

    q_BxTxHxK: jax.Array
    k_BxSxHxK: jax.Array
    v_BxSxHxU: jax.Array
    bias: jax.Array | None
    deep_kernel_HxUxU: jax.Array | None
    dropout: jax.Array | None
    weights_BxNxT: jax.Array | None
    q_position_T: jax.Array
    k_position_S: jax.Array
    q_segment_BxT: jax.Array | None
    k_segment_BxS: jax.Array | None
    spec: AttentionSpec
    causal: bool
    q_offset: int | None

    @property
    def is_plain(self) -> bool:
        """Whether it has neither a bias nor dropout."""
        return self.bias is None and self.dropout is None

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of products of q, k and v."""
        return jnp.result_type(self.q_BxTxHxK, self.k_BxSxHxK, self.v_BxSxHxU)

    @property
    def segments(self) -> tuple[jax.Array, jax.Array] | None:
        """The segment ids of queries and of keys."""
        if self.q_segment_BxT is None or self.k_segment_BxS is None:
            return None
        return self.q_segment_BxT, self.k_segment_BxS


jax.tree_util.register_dataclass(Request, list(AXES), ["spec", "causal", "q_offset"])


def make_request(
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
) -> Request:
    """The request of T queries from position `q_offset` on to S keys from 0 on.

    `bias` and `dropout` (a multiplier of the code, already divided by the probability of keeping)
    are broadcastable to BxHxTxS; `segment_ids` (BxS, never decreasing) hide other documents;
    `weights` are those of a pair network (spec.py), HxH or BxTxHxH each. Raises UserError for
    shapes that do not fit.
    """
    _check_shapes(q_BxTxHxK, k_BxSxHxK, v_BxSxHxU, spec, deep_kernel_HxUxU)
    joined = _join_weights(spec, weights)
    q_length, k_length = q_BxTxHxK.shape[1], k_BxSxHxK.shape[1]
    q_segment = None
    if segment_ids is not None:
        q_segment = jax.lax.dynamic_slice_in_dim(segment_ids, q_offset, q_length, 1)
    return Request(
        q_BxTxHxK,
        k_BxSxHxK,
        v_BxSxHxU,
        bias,
        deep_kernel_HxUxU,
        dropout,
        joined,
        jnp.arange(q_length) + q_offset,
        jnp.arange(k_length),
        q_segment,
        segment_ids,
        spec,
        causal,
        q_offset if isinstance(q_offset, int) else None,
    )


def map_arrays(function: Callable[[str, Any], Any], request: Request) -> Request:
    """The request with function(name, array) in place of each array that is not None."""
    given = {name: getattr(request, name) for name in AXES}
    return replace(
        request, **{name: function(name, x) for name, x in given.items() if x is not None}
    )


def _join_weights(spec: AttentionSpec, weights: Mapping[str, jax.Array]) -> jax.Array | None:
    """The weights of a call, {name: BxTxHxH or HxH}, as BxNxT; 1xNx1 if no query has its own."""
    if not weights:
        return None
    known = spec.pair_network.weights if spec.pair_network else {}
    if set(weights) != set(known):
        wanted = ", ".join(known) or "none"
        raise UserError(f"attend: the weights are {sorted(weights)}; want {wanted} for {spec}.")
    parts = []
    for name, weight in known.items():
        x, rank = weights[name], len(weight.axes)
        batch_and_time = x.shape[: x.ndim - rank] or (1, 1)
        parts.append(x.reshape(*batch_and_time, math.prod(x.shape[x.ndim - rank :])))
    batch, length = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    whole = [jnp.broadcast_to(part, (batch, length, part.shape[2])) for part in parts]
    return jnp.concatenate(whole, axis=2).swapaxes(1, 2)


def _check_shapes(
    q: jax.Array, k: jax.Array, v: jax.Array, spec: AttentionSpec, deep_kernel: jax.Array | None
) -> None:
    batch, _, heads, head_dim = q.shape
    if k.shape[::2] != (batch, heads) or k.shape[3] != head_dim or v.shape[:3] != k.shape[:3]:
        shapes = (q.shape, k.shape, v.shape)
        raise UserError(f"attend: q, k, v have shapes {shapes}; want BxTxHxK, BxSxHxK, BxSxHxU.")
    if (spec.value_depth == 2) != (deep_kernel is not None):
        raise UserError(f"attend: deep_kernel_HxUxU goes with value_depth 2, not {spec}.")
