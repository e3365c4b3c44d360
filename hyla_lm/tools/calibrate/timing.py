"""Times of compiled programs, and those of the device itself: products, memory, collectives.

A time is the median of several runs, each waited for, with its quartiles.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

FEWEST = 3
PRODUCTS = 8  # one after the other in a program, so that launching it counts for little
SIDE, SIDE_ON_CPU = 8192, 1024
MIB, MIB_ON_CPU = 1024, 128
COLLECTIVE_KIB, COLLECTIVE_KIB_ON_CPU = (64, 2048, 65536), (64, 1024, 8192)
COLLECTIVES: Mapping[str, Callable[..., jax.Array]] = MappingProxyType(
    {
        "all-reduce": lambda x, axes: jax.lax.psum(x, axes),
        "all-gather": lambda x, axes: jax.lax.all_gather(x, axes, tiled=True),
        "reduce-scatter": lambda x, axes: jax.lax.psum_scatter(x, axes, tiled=True),
    }
)


@dataclass(frozen=True)
class Budget:
    """At most `repeats` runs of a program, fewer once they took `seconds`, but at least 3."""

    repeats: int = 20
    seconds: float = 4.0


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: the median of `repeats`, and the quartiles."""

    seconds: float
    lower_quartile: float
    upper_quartile: float
    repeats: int

    def times(self, count: int) -> "Timing":
        """The time of `count` runs."""
        quartiles = (self.lower_quartile * count, self.upper_quartile * count)
        return Timing(self.seconds * count, *quartiles, self.repeats)

    @property
    def spread(self) -> float:
        """The farther quartile's distance from the median, over the median."""
        lower, upper = self.seconds - self.lower_quartile, self.upper_quartile - self.seconds
        return max(lower, upper) / self.seconds


@dataclass(frozen=True)
class Measurement:
    """A time by group and name; `work` is what one run does, in FLOP, B or tok, as `unit` says."""

    group: str
    name: str
    timing: Timing
    work: float | None = None
    unit: str = ""

    @property
    def rate(self) -> float | None:
        """Work per second."""
        return None if self.work is None else self.work / self.timing.seconds


def timed(run: Callable[[], Any], budget: Budget) -> Timing:
    """The time of `run` until its results are there, without a first run, which compiles."""
    jax.block_until_ready(run())
    seconds: list[float] = []
    while len(seconds) < budget.repeats and (
        len(seconds) < FEWEST or sum(seconds) < budget.seconds
    ):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return timing_of(seconds)


def timing_of(seconds: list[float]) -> Timing:
    """Median and quartiles of the times of at least two runs."""
    lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, lower, upper, len(seconds))


def time_peaks(device: jax.Device, dtype: str, budget: Budget) -> Iterator[Measurement]:
    """Products of square matrices in this dtype, and adding 1 to every entry of a long array."""
    is_cpu = device.platform == "cpu"
    side, mib = (SIDE_ON_CPU, MIB_ON_CPU) if is_cpu else (SIDE, MIB)
    with jax.default_device(device):
        matrix = jax.random.normal(jax.random.key(0), (side, side), dtype) * side**-0.5
        multiply = jax.jit(lambda x: jax.lax.fori_loop(0, PRODUCTS, lambda _, y: y @ matrix, x))
        flops = float(PRODUCTS * 2 * side**3)
        timing = timed(lambda: multiply(matrix), budget)
        yield Measurement("peak", f"{side}² {dtype} product", timing, flops, "FLOP")
        array, add = jnp.zeros(mib * 2**18, jnp.float32), jax.jit(lambda x: x + 1)
        timing = timed(lambda: add(array), budget)
        yield Measurement("peak", f"memory, {mib} MiB", timing, 2.0 * array.nbytes, "B")


def time_collectives(mesh: Mesh, budget: Budget) -> Iterator[Measurement]:
    """Each kind over all devices, of a few sizes; the size is that of the whole array."""
    is_cpu = mesh.devices.flat[0].platform == "cpu"
    axes = tuple(mesh.axis_names)
    with jax.set_mesh(mesh):
        for kind, exchange in COLLECTIVES.items():
            into = PartitionSpec(axes) if kind == "all-gather" else PartitionSpec()
            out = PartitionSpec(axes) if kind == "reduce-scatter" else PartitionSpec()
            part = partial(exchange, axes=axes)
            run: Any = jax.jit(jax.shard_map(part, in_specs=into, out_specs=out, check_vma=False))
            for kib in COLLECTIVE_KIB_ON_CPU if is_cpu else COLLECTIVE_KIB:
                length = kib * 256 // mesh.size * mesh.size
                x = jax.device_put(jnp.ones(length, jnp.float32), jax.NamedSharding(mesh, into))
                size = f"{kib // 1024} MiB" if kib >= 1024 else f"{kib} KiB"
                timing = timed(partial(run, x), budget)
                yield Measurement("collective", f"{kind}, {size}", timing, 4.0 * length, "B")
