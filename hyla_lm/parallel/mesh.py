"""The devices that JAX computes on, and the mesh over them."""

import functools
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

from hyla_lm.attention.chips import CHIPS
from hyla_lm.config.declare import configurable, setting
from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError

AXES = ("replica", "data", "fsdp", "model")
BATCH_AXES = ("replica", "data", "fsdp")
BATCH = PartitionSpec(BATCH_AXES)
REPLICATED = PartitionSpec()

SET_HINT = " (set JAX_PLATFORMS"


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
    chosen = all_devices() if devices is None else list(devices)
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
def single_device() -> Iterator[None]:
    """The first device of this process as the mesh in use, for what only this process does."""
    device = np.array(jax.local_devices()[:1]).reshape((1,) * len(AXES))
    with jax.set_mesh(Mesh(device, AXES, axis_types=(AxisType.Auto,) * len(AXES))):
        yield


def _sizes(config: MeshConfig, count: int) -> tuple[int, ...]:
    fixed = math.prod(size for size in config.sizes if size != -1)
    sizes = tuple(count // fixed if size == -1 else size for size in config.sizes)
    if math.prod(sizes) == count:
        return sizes
    named = ", ".join(f"{axis}={size}" for axis, size in zip(AXES, config.sizes, strict=True))
    needs = "needs a multiple of" if -1 in config.sizes else "is a mesh of"
    raise UserError(
        f"MeshConfig {named} {needs} {fixed} devices but there are {count}: change its sizes; -1 "
        "takes the devices that are left."
    )


def dividing_mesh() -> AbstractMesh | None:
    """The mesh in use; None without a mesh or on local arrays, where nothing is split."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty or mesh.size == 1 or mesh.manual_axes else mesh


def memory_of(device: jax.Device) -> float:
    """Bytes that programs may use of a device; devices of a CPU share the memory of the machine."""
    if device.platform == "cpu":
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pages / jax.local_device_count("cpu")
    known = {chip.device_kind: chip.hbm_bytes for chip in CHIPS.values()}
    if device.device_kind in known:
        return known[device.device_kind]
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", math.inf)


@functools.cache
def check_devices() -> None:
    """Raises UserError where JAX has no devices, or not those that JAX_PLATFORMS asks for."""
    asked = os.environ.get("JAX_PLATFORMS", "")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX asserts that it found a platform
        reason = reason_of(error).partition(SET_HINT)[0]
        if asked:
            raise UserError(
                f"JAX_PLATFORMS={asked} asks for devices that JAX does not find here ({reason}): "
                "install hyla_lm[tpu] or hyla_lm[gpu] on a machine that has them, or unset it."
            ) from error
        raise Unavailable(
            f"JAX cannot use the devices of this machine ({reason}): end the process that holds "
            "them, or set JAX_PLATFORMS=cpu."
        ) from error


def all_devices() -> list[jax.Device]:
    """JAX's devices, of all processes; raises UserError as `check_devices` does."""
    check_devices()
    return jax.devices()
