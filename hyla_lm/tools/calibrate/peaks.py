"""What one device reaches at best: FLOPs of a matrix product, bytes from and to its memory."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from hyla_lm.attention.chips import BY_KIND
from hyla_lm.model.flops import PEAK_FLOPS
from hyla_lm.tools.calibrate.timing import Budget, Measurement, timed

GROUP = "peak"
PRODUCTS = 8  # one after the other in a program, so that launching it counts for little
SIDE = {"cpu": 1024}
LARGE_SIDE = 8192
MIB = {"cpu": 128}
LARGE_MIB = 1024


def time_peaks(device: jax.Device, dtype: str, budget: Budget) -> Iterator[Measurement]:
    """Products of square matrices in this dtype, and adding 1 to every entry of a long array."""
    with jax.default_device(device):
        yield _products(device, dtype, budget)
        yield _traffic(device, budget)


def _products(device: jax.Device, dtype: str, budget: Budget) -> Measurement:
    side = SIDE.get(device.platform, LARGE_SIDE)
    matrix = jax.random.normal(jax.random.key(0), (side, side), dtype) * side**-0.5

    @jax.jit
    def multiply(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, PRODUCTS, lambda _, y: y @ matrix, x)

    flops = float(PRODUCTS * 2 * side**3)
    peak = PEAK_FLOPS.get(device.device_kind) if dtype == "bfloat16" else None
    predicted = {} if peak is None else {"peak": flops / peak}
    timing = timed(lambda: multiply(matrix), budget)
    return Measurement(GROUP, f"{side}² {dtype} product", timing, predicted, flops, "FLOP")


def _traffic(device: jax.Device, budget: Budget) -> Measurement:
    mib = MIB.get(device.platform, LARGE_MIB)
    array, add = jnp.zeros(mib * 2**18, jnp.float32), jax.jit(lambda x: x + 1)
    moved = 2.0 * array.nbytes
    chip = BY_KIND.get(device.device_kind)
    predicted = {} if chip is None else {"peak": moved / chip.hbm_bytes_per_second}
    timing = timed(lambda: add(array), budget)
    return Measurement(GROUP, f"memory, {mib} MiB", timing, predicted, moved, "B")
