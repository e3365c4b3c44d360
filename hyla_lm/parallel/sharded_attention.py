"""The one place that splits attention over a mesh; models never see shard_map.

If heads mix (HYLA), each device of the `model` axis takes some query positions and all keys;
otherwise it takes some heads. So kernels, which XLA cannot partition, always run on local arrays.

A late query of a causal row sees more keys than an early one. So the devices exchange the later
half of their queries, the first with the last, and each sees as many pairs as any other.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hyla_lm.attention.attend import attend_request
from hyla_lm.attention.lanes import LANES
from hyla_lm.attention.request import AXES, Request, map_arrays
from hyla_lm.attention.spec import AttentionSpec
from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import BATCH_AXES, dividing_mesh


def split_by_batch(x_BxTxD: jax.Array) -> jax.Array:
    """The same array, kept split only over the batch axes on the mesh in use.

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
        shard = _with_local_offset(shard, mesh)
        if not _is_balanced(request, mesh):
            return attend_request(shard, implementation)
        exchange = partial(_of_the_mirror, devices=mesh.shape["model"])
        own = _of_queries(lambda x, axis: jnp.split(x, 2, axis)[0], shard)
        other = _of_queries(lambda x, axis: exchange(jnp.split(x, 2, axis)[1]), shard)
        y_own, y_other = (attend_request(half, implementation) for half in (own, other))
        return jnp.concatenate([y_own, exchange(y_other)], axis=1)

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
    """Splits query segments only by batch: XLA splits tokens and the loss like them."""
    if request.q_segment_BxT is None:
        return request
    return replace(request, q_segment_BxT=split_by_batch(request.q_segment_BxT))


def _with_local_offset(shard: Request, mesh: AbstractMesh) -> Request:
    """Makes q_offset unknown if queries are split: it then depends on the device."""
    knows = not shard.spec.mixes_heads or mesh.shape.get("model", 1) == 1
    return shard if knows else replace(shard, q_offset=None)


def _is_balanced(request: Request, mesh: AbstractMesh) -> bool:
    """Whether devices exchange queries: where halves are whole blocks, so that it costs no more."""
    parts = mesh.shape.get("model", 1)
    splits_queries = request.causal and request.spec.mixes_heads and parts > 1
    return splits_queries and request.q_BxTxHxK.shape[1] % (2 * parts * LANES) == 0


def _of_queries(function: Callable[[jax.Array, int], jax.Array], request: Request) -> Request:
    """The request with function(array, axis) in place of what differs by query."""

    def change(name: str, x: jax.Array) -> jax.Array:
        axis = AXES[name].find("T")
        return x if axis < 0 or x.shape[axis] == 1 else function(x, axis)

    return map_arrays(change, request)


def _of_the_mirror(x: jax.Array, devices: int) -> jax.Array:
    """The array of the device that is as far from the last as this one is from the first."""
    return jax.lax.ppermute(x, "model", [(i, devices - 1 - i) for i in range(devices)])


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
