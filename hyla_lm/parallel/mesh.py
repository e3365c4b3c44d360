"""The device mesh, and how parameters and batches are split over it."""

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError

AXES = ("replica", "data", "fsdp", "model")
BATCH_AXES = ("replica", "data", "fsdp")
BATCH = PartitionSpec(BATCH_AXES)
REPLICATED = PartitionSpec()

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


@configurable
@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; one may be -1, which takes the devices that are left."""

    replica: int = setting(1, "copies of the rest of the mesh: slices of a multislice run")
    data: int = setting(-1, "devices that split the batch and each hold all parameters")
    fsdp: int = setting(1, "devices that split the batch and the parameters")
    model: int = setting(1, "devices that split query positions (HYLA), heads, F and V")

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(getattr(self, axis) for axis in AXES)

    def check(self) -> None:
        if any(size < 1 and size != -1 for size in self.sizes) or self.sizes.count(-1) > 1:
            raise UserError(f"{self} needs sizes of at least 1 and at most one -1: change it.")


def make_mesh(config: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """The mesh over all (or the given) devices; raises UserError when its sizes do not fit them.

    On several TPU slices `replica` crosses the slower network between slices; the other axes stay
    inside a slice.
    """
    chosen = jax.devices() if devices is None else list(devices)
    sizes = _sizes(config, len(chosen))
    axis_types = (AxisType.Auto,) * len(AXES)
    slices = len({getattr(device, "slice_index", 0) for device in chosen})
    if chosen[0].platform != "tpu" or slices == 1:
        return jax.make_mesh(sizes, AXES, axis_types=axis_types, devices=chosen)
    if sizes[0] % slices:
        raise UserError(
            f"MeshConfig.replica = {sizes[0]} but the devices are on {slices} slices: set it to "
            f"{slices} or a multiple, so that only gradients go from slice to slice."
        )
    within, across = (sizes[0] // slices, *sizes[1:]), (slices, *[1] * (len(sizes) - 1))
    grid = mesh_utils.create_hybrid_device_mesh(within, across, chosen)
    return Mesh(grid, AXES, axis_types=axis_types)


@contextmanager
def alone() -> Iterator[None]:
    """The first device of this process as the mesh in use, for what this process does alone."""
    device = np.array(jax.local_devices()[:1]).reshape((1,) * len(AXES))
    with jax.set_mesh(Mesh(device, AXES, axis_types=(AxisType.Auto,) * len(AXES))):
        yield


def _sizes(config: MeshConfig, count: int) -> tuple[int, ...]:
    fixed = math.prod(size for size in config.sizes if size != -1)
    sizes = tuple(count // fixed if size == -1 else size for size in config.sizes)
    if math.prod(sizes) != count:
        named = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, config.sizes, strict=True))
        raise UserError(
            f"MeshConfig {named} {_misfit(config, fixed)} but there are {count}: "
            f"{_change(config, fixed, count)}."
        )
    return sizes


def _misfit(config: MeshConfig, fixed: int) -> str:
    return f"{'needs a multiple of' if -1 in config.sizes else 'is a mesh of'} {fixed} devices"


def _change(config: MeshConfig, fixed: int, count: int) -> str:
    """What to set so that `count` devices fit: the size of `data`, if there is one that does."""
    others = fixed // max(1, config.data)
    if -1 in config.sizes or count % others:
        return "change its sizes"
    return f"set MeshConfig.data = {count // others}, or -1, which takes the devices that are left"


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


def dividing_mesh() -> AbstractMesh | None:
    """The mesh in use; None without a mesh or on local arrays, where nothing is split."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 or mesh.manual_axes else mesh
