"""Collectives between the devices that are here, of a few sizes."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from hyla_lm.tools.calibrate.timing import Budget, Measurement, timed
from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.topology import Slice

GROUP = "collective"
KIB = (64, 2048, 65536)
KIB_ON_CPU = (64, 1024, 8192)
WHOLE = PartitionSpec()
RUNS: Mapping[str, Callable[[jax.Array, tuple[str, ...]], jax.Array]] = MappingProxyType(
    {
        "all-reduce": lambda x, axes: jax.lax.psum(x, axes),
        "all-gather": lambda x, axes: jax.lax.all_gather(x, axes, tiled=True),
        "reduce-scatter": lambda x, axes: jax.lax.psum_scatter(x, axes, tiled=True),
    }
)


def time_links(mesh: Mesh, topology: str, budget: Budget) -> Iterator[Measurement]:
    """Each kind and size over all devices; predicted where the topology is known."""
    platform = mesh.devices.flat[0].platform
    with jax.set_mesh(mesh):
        for kind in RUNS:
            for kib in KIB_ON_CPU if platform == "cpu" else KIB:
                yield _collective(kind, kib, mesh, topology, budget)


def _collective(kind: str, kib: int, mesh: Mesh, topology: str, budget: Budget) -> Measurement:
    """The size is that of the whole array, as in a plan."""
    axes, count = tuple(mesh.axis_names), mesh.size
    length = kib * 256 // count * count
    into = PartitionSpec(axes) if kind == "all-gather" else WHOLE
    out = PartitionSpec(axes) if kind == "reduce-scatter" else WHOLE
    run: Any = jax.jit(
        jax.shard_map(lambda x: RUNS[kind](x, axes), in_specs=into, out_specs=out, check_vma=False)
    )
    x = jax.device_put(jnp.ones(length, jnp.float32), jax.NamedSharding(mesh, into))
    predicted = {}
    if topology:
        moved = Collective(kind, kind, 4 * length, 1, count, axes, 0, False, False, (), "")
        predicted["ring"] = moved.seconds(Slice(topology).ring_bytes_per_second)
    size = f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"
    timing = timed(lambda: run(x), budget)
    return Measurement(GROUP, f"{kind}, {size}", timing, predicted, 4.0 * length, "B")
