"""Which part of each parameter a device holds, and which rows of each batch a process reads."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import BATCH, BATCH_AXES, REPLICATED

# The axis each trailing dimension of a parameter is split over, by the end of its path.
PARAMETER_RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    (r"embed/table", ("model", "fsdp")),
    (r"(query|key|value)/kernel", ("fsdp", "model", None)),
    (r"attention/gate/kernel", ("fsdp", "model", None)),
    (r"(query|key|value)/bias", ("model", "fsdp")),
    (r"out/kernel", ("model", None, "fsdp")),
    (r"feedforward/gate", ("fsdp", None)),
    (r"feedforward/(up|gate)/kernel", ("fsdp", "model")),
    (r"feedforward/down/kernel", ("model", "fsdp")),
    (r"feedforward/up", (None, "fsdp", "model")),
    (r"feedforward/down", (None, "model", "fsdp")),
    (r"head/kernel", ("fsdp", "model")),
    (r"deep_kernel", (None, "fsdp", None)),
    (r"relative_bias", (None, "fsdp")),
    (r"kernel|table", (None, "fsdp")),
    (r"bias|scale", ("fsdp",)),
)


@dataclass(frozen=True)
class BatchShard:
    """Part `index` of `count` of each global batch of `batch_size` rows, in the order of `seed`.

    `rows` are the positions of its rows in the batch; without them the parts are contiguous.
    Processes that hold different parts of the model and the same rows have the same shard.
    """

    batch_size: int
    seed: int = 0
    index: int = 0
    count: int = 1
    rows: tuple[int, ...] | None = None

    @property
    def places(self) -> Sequence[int]:
        """The places of this shard's rows in a batch."""
        if self.rows is not None:
            return self.rows
        size = self.batch_size // self.count
        return range(self.index * size, (self.index + 1) * size)


def parameter_spec(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """The split of a parameter by the rule for its path; indivisible dimensions stay whole."""
    for pattern, axes in PARAMETER_RULES:
        if re.search(rf"(^|/)({pattern})$", path) and len(axes) <= len(shape):
            sizes = shape[len(shape) - len(axes) :]
            fitting = [
                axis if axis and size % mesh.shape[axis] == 0 else None
                for axis, size in zip(axes, sizes, strict=True)
            ]
            return PartitionSpec(*[None] * (len(shape) - len(axes)), *fitting)
    return REPLICATED


def path_of(key_path: tuple[Any, ...]) -> str:
    """A pytree key path as names joined by slashes."""
    return "/".join(
        str(getattr(k, "key", getattr(k, "name", getattr(k, "idx", k)))) for k in key_path
    )


def state_sharding(state: Any, mesh: Mesh) -> Any:
    """A sharding for each leaf of a train state; optimizer moments follow their parameter."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: NamedSharding(mesh, parameter_spec(path_of(path), leaf.shape, mesh)),
        state,
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Splits the leading axis over the devices that share a batch."""
    return NamedSharding(mesh, BATCH)


def batch_ways(mesh: Mesh) -> int:
    """The number of parts that a batch is split into."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def shard_of(mesh: Mesh, batch_size: int, seed: int = 0) -> BatchShard:
    """The rows of each global batch that this process's devices hold."""
    rows: dict[int, set[int]] = {index: set() for index in range(jax.process_count())}
    placed: Mapping[Any, Any] = batch_sharding(mesh).devices_indices_map((batch_size,))
    for device, (part,) in placed.items():
        rows[device.process_index].update(range(*part.indices(batch_size)))
    parts = sorted({tuple(sorted(held)) for held in rows.values()})
    mine = tuple(sorted(rows[jax.process_index()]))
    if sum(map(len, parts)) != batch_size:
        raise UserError(
            "the mesh gives processes parts of the batch that overlap: "
            "let MeshConfig.model divide, or be a multiple of, the devices of a process."
        )
    return BatchShard(batch_size, seed, parts.index(mine), len(parts), mine)


def bytes_on_device(tree: Any) -> int:
    """What each device holds of arrays, or of shapes with shardings, without padding to tiles."""
    return sum(
        leaf.dtype.itemsize * math.prod(leaf.sharding.shard_shape(leaf.shape))
        for leaf in jax.tree.leaves(tree)
    )
