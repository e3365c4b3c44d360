"""Runs the interpreted TPU kernel on a 2 x 2 mesh; prints its errors beside the reference.

A script, since the number of devices is fixed at start. One number an output and a gradient: the
largest difference relative to the largest entry.
"""

import os

# Devices of the interpreter wait for each other in threads, of which there is one a core otherwise.
os.environ |= {"PJRT_NPROC": "16", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.attend import VARIANTS, make_request
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.parallel.sharded_attention import attend_on_mesh

B, T, H, K, U = 2, 260, 3, 8, 8


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def output_and_gradients(implementation: str) -> list[np.ndarray]:
    segments = jnp.asarray(np.cumsum(np.random.default_rng(5).random((B, T)) < 0.05, axis=1))

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend_on_mesh(
            make_request(q, k, v, VARIANTS["hyla"], causal=True, segment_ids=segments),
            implementation,
        )

    def both(*qkv: jax.Array):
        y, pull_back = jax.vjp(attention, *qkv)
        return y, *pull_back(normal(4, *y.shape))

    qkv = normal(1, B, T, H, K), normal(2, B, T, H, K), normal(3, B, T, H, U)
    return jax.device_get(jax.jit(both)(*qkv))


def main() -> None:
    with jax.set_mesh(make_mesh(MeshConfig(data=2, model=2))):
        with pltpu.force_tpu_interpret_mode():
            actual = output_and_gradients("pallas_tpu")
        expected = output_and_gradients("reference")
    for got, wanted in zip(actual, expected, strict=True):
        print(float(abs(got - wanted).max() / abs(wanted).max()))


if __name__ == "__main__":
    main()
