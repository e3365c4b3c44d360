"""The one place that splits attention over a mesh; models never see shard_map.

If heads mix (HYLA), each device of the `model` axis takes some query positions and all keys;
otherwise it takes some heads. So kernels, which XLA cannot partition, always run on local arrays.
"""

from dataclasses import replace

import jax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hyla_lm.attention import Request, attend_request
from hyla_lm.config import UserError
from hyla_lm.kernels.request import AXES, map_arrays
from hyla_lm.kernels.spec import AttentionSpec
from hyla_lm.parallel.mesh import BATCH_AXES, dividing_mesh


def split_by_batch(x_BxTxD: jax.Array) -> jax.Array:
    """The same array, kept split over the batch axes alone on the mesh in use.

    Without it, XLA splits activations like the parameters (`fsdp`) and moves whole batches between
    chips in every layer.
    """
    if dividing_mesh() is None or x_BxTxD.shape[1] == 1:
        return x_BxTxD
    return jax.lax.with_sharding_constraint(x_BxTxD, P(BATCH_AXES))


def attend_on_mesh(request: Request, implementation: str = "auto") -> jax.Array:
    """`attend`, split over the mesh in use; raises UserError if `model` does not divide."""
    mesh = _mesh_for(request)
    if mesh is None:
        return attend_request(request, implementation)

    def local(shard: Request) -> jax.Array:
        return attend_request(_with_local_offset(shard, mesh), implementation)

    specs = _specs(request)
    sharded = jax.shard_map(local, in_specs=(specs,), out_specs=specs.q_BxTxHxK, check_vma=False)
    return sharded(_with_tokens_by_batch(request))


def local_request(request: Request) -> Request:
    """The request of one device of the mesh in use, as shapes."""
    mesh = _mesh_for(request)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), request)
    if mesh is None:
        return shapes

    def shard(x: jax.ShapeDtypeStruct, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(NamedSharding(mesh, spec).shard_shape(x.shape), x.dtype)

    return _with_local_offset(jax.tree.map(shard, shapes, _specs(request)), mesh)


def _mesh_for(request: Request) -> AbstractMesh | None:
    """The checked mesh in use; None without a mesh or for one query, which are not split."""
    mesh = dividing_mesh()
    _, length, heads, _ = request.q_BxTxHxK.shape
    if mesh is None or length == 1:
        return None
    check_mesh(mesh.shape.get("model", 1), request.spec, heads, length)
    return mesh


def _specs(request: Request) -> Request:
    """The split of each array: by batch, and by queries or heads; axes of size 1 stay whole."""
    by = {"B": BATCH_AXES, "T" if request.spec.mixes_heads else "H": "model"}

    def spec(name: str, x: jax.Array) -> P:
        axes = zip(AXES[name], x.shape, strict=True)
        return P(*(by.get(axis) if size > 1 else None for axis, size in axes))

    return map_arrays(spec, request)


def _with_tokens_by_batch(request: Request) -> Request:
    """Splits query segments by batch alone: XLA splits tokens and the loss like them."""
    if request.q_segment_BxT is None:
        return request
    return replace(request, q_segment_BxT=split_by_batch(request.q_segment_BxT))


def _with_local_offset(shard: Request, mesh: AbstractMesh) -> Request:
    """Makes q_offset unknown if queries are split: it then depends on the device."""
    knows = not shard.spec.mixes_heads or mesh.shape.get("model", 1) == 1
    return shard if knows else replace(shard, q_offset=None)


def check_mesh(parts: int, spec: AttentionSpec, num_heads: int, length: int) -> None:
    """Raises UserError if the axis `model` does not divide the queries (HYLA) or the heads."""
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
