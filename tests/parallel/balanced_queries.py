"""Causal attention that mixes heads, with the queries of a row split; prints findings as JSON.

Run with JAX_NUM_CPU_DEVICES=4. They are errors of an output and each gradient against one device,
relative to the largest entry.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.lanes import LANES
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.spec import VARIANTS
from hyla_lm.parallel import sharded_attention
from hyla_lm.parallel.mesh import MeshConfig, make_mesh

PARTS = (2, 4)
B, H, K, U = 4, 2, 4, 5


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def request(qkv: list[jax.Array], gate: jax.Array) -> Request:
    length = qkv[0].shape[1]
    segments = np.random.default_rng(5).random((B, length)) < 0.01
    return make_request(
        *qkv,
        VARIANTS["hyla_gated"],
        bias=normal(6, 1, H, length, length),
        causal=True,
        segment_ids=jnp.asarray(np.cumsum(segments, axis=1)),
        weights={"gate": gate},
    )


def output_and_gradients(length: int) -> list[np.ndarray]:
    def attention(gate: jax.Array, *qkv: jax.Array) -> jax.Array:
        asked = request(list(qkv), gate)
        return sharded_attention.attend_on_mesh(asked, "blocked")

    sizes = ((H, H), (B, length, H, K), (B, length, H, K), (B, length, H, U))
    operands = [normal(seed, *size) for seed, size in enumerate(sizes)]

    def both(*operands: jax.Array) -> tuple[jax.Array, ...]:
        y, pull_back = jax.vjp(attention, *operands)
        return y, *pull_back(normal(9, *y.shape))

    return jax.device_get(jax.jit(both)(*operands))


def main() -> None:
    results = {}
    for parts in PARTS:
        length = 2 * parts * LANES
        expected = output_and_gradients(length)
        with jax.set_mesh(make_mesh(MeshConfig(data=4 // parts, model=parts))):
            actual = output_and_gradients(length)
        results[parts] = [
            float(abs(got - wanted).max() / abs(wanted).max())
            for got, wanted in zip(actual, expected, strict=True)
        ]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
