"""The one place that splits attention over a mesh; models never see shard_map.

Where heads mix (HYLA), each device of the `model` axis takes some query positions and all keys;
otherwise it takes some heads. A kernel that XLA cannot partition thus always runs on local arrays.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from hyla_lm.attention import attend
from hyla_lm.config import UserError
from hyla_lm.kernels.spec import AttentionSpec
from hyla_lm.parallel.mesh import BATCH_AXES, dividing_mesh

Operands = tuple[Any, ...]


def split_by_batch(x_BxTxD: jax.Array) -> jax.Array:
    """The same array, kept split over the batch axes alone on the mesh in use.

    Left to itself, XLA splits activations as it finds parameters split (`fsdp`), and then moves
    whole batches between chips in every layer.
    """
    if dividing_mesh() is None or x_BxTxD.shape[1] == 1:
        return x_BxTxD
    return jax.lax.with_sharding_constraint(x_BxTxD, P(BATCH_AXES))


def attend_on_mesh(
    q_BxTxHxK: jax.Array,
    k_BxSxHxK: jax.Array,
    v_BxSxHxU: jax.Array,
    spec: AttentionSpec,
    *,
    bias: jax.Array | None,
    causal: bool,
    segment_ids: jax.Array | None,
    q_offset: int | jax.Array,
    deep_kernel_HxUxU: jax.Array | None,
    dropout: jax.Array | None,
    implementation: str,
) -> jax.Array:
    """`attend`, split over the mesh in use; raises UserError where `model` does not divide."""
    mesh = dividing_mesh()

    def run(shards: Operands, first_query: int | jax.Array) -> jax.Array:
        q, k, v, bias, segments, deep_kernel, dropout = shards
        return attend(
            q,
            k,
            v,
            spec,
            bias=bias,
            causal=causal,
            segment_ids=segments,
            q_offset=first_query,
            deep_kernel_HxUxU=deep_kernel,
            dropout=dropout,
            implementation=implementation,
        )

    operands: Operands = (
        q_BxTxHxK,
        k_BxSxHxK,
        v_BxSxHxU,
        bias,
        segment_ids,
        deep_kernel_HxUxU,
        dropout,
    )
    if mesh is None or q_BxTxHxK.shape[1] == 1:
        return run(operands, q_offset)
    parts = mesh.shape.get("model", 1)
    check_mesh(parts, spec, q_BxTxHxK.shape[2], q_BxTxHxK.shape[1])
    split: Callable[..., tuple[P, ...]] = _by_query if spec.mixes_heads else _by_head
    in_specs = split(bias, dropout)

    def local(*shards: Any) -> jax.Array:
        first_query = q_offset
        if spec.mixes_heads and parts > 1:
            first_query = q_offset + jax.lax.axis_index("model") * shards[0].shape[1]
        return run(shards, first_query)

    sharded = jax.shard_map(local, in_specs=in_specs, out_specs=in_specs[0], check_vma=False)
    return sharded(*operands)


def _by_query(bias: jax.Array | None, dropout: jax.Array | None):
    batch, query = P(BATCH_AXES), P(BATCH_AXES, "model")
    return query, batch, batch, _pairs(bias, 2), batch, P(), _pairs(dropout, 2)


def _by_head(bias: jax.Array | None, dropout: jax.Array | None):
    heads, batch = P(BATCH_AXES, None, "model"), P(BATCH_AXES)
    return heads, heads, heads, _pairs(bias, 1), batch, P("model"), _pairs(dropout, 1)


def _pairs(x: jax.Array | None, model_axis: int) -> P:
    """The split of an array broadcastable to BxHxTxS: axes of size 1 stay whole."""
    if x is None:
        return P()
    axes: list[object] = [BATCH_AXES, None, None, None]
    axes[model_axis] = "model"
    return P(*(axis if size > 1 else None for axis, size in zip(axes, x.shape, strict=True)))


def check_mesh(parts: int, spec: AttentionSpec, num_heads: int, length: int) -> None:
    """Raises UserError where the `model` axis of the mesh divides neither queries nor heads."""
    if spec.mixes_heads and length % parts:
        raise UserError(
            f"MeshConfig.model = {parts} does not divide the {length} query positions: "
            "change it or the sequence length."
        )
    if not spec.mixes_heads and num_heads % parts:
        raise UserError(
            f"MeshConfig.model = {parts} does not divide ModelConfig.num_heads = {num_heads}: "
            "change one."
        )
