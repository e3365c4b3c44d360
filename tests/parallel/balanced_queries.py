"""Causal attention that mixes heads, with the queries of a row split; prints findings as JSON.

Run with JAX_NUM_CPU_DEVICES=4. `errors` are those of an output and each gradient against one
device, relative to the largest entry; `devices` computed each query.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.attention.attend import VARIANTS, Request, make_request
from hyla_lm.attention.lanes import LANES
from hyla_lm.parallel import sharded_attention
from hyla_lm.parallel.mesh import MeshConfig, make_mesh

PARTS = (2, 4)
B, H, K, U = 4, 2, 4, 5


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def request(qkv: list[jax.Array], gate: jax.Array, causal: bool) -> Request:
    length = qkv[0].shape[1]
    segments = np.random.default_rng(5).random((B, length)) < 0.01
    return make_request(
        *qkv,
        VARIANTS["hyla_gated"],
        bias=normal(6, 1, H, length, length),
        causal=causal,
        segment_ids=jnp.asarray(np.cumsum(segments, axis=1)),
        weights={"gate": gate},
    )


def output_and_gradients(length: int) -> list[np.ndarray]:
    def attention(gate: jax.Array, *qkv: jax.Array) -> jax.Array:
        asked = request(list(qkv), gate, causal=True)
        return sharded_attention.attend_on_mesh(asked, "blocked")

    sizes = ((H, H), (B, length, H, K), (B, length, H, K), (B, length, H, U))
    operands = [normal(seed, *size) for seed, size in enumerate(sizes)]

    def both(*operands: jax.Array) -> tuple[jax.Array, ...]:
        y, pull_back = jax.vjp(attention, *operands)
        return y, *pull_back(normal(9, *y.shape))

    return jax.device_get(jax.jit(both)(*operands))


def devices_of_queries(length: int, causal: bool) -> list[int]:
    """Which device of the axis computes each query of a row."""

    def number(shard: Request, _: str) -> jax.Array:
        batch, queries, heads, _ = shard.q_BxTxHxK.shape
        return jnp.full((batch, queries, heads, U), jax.lax.axis_index("model"))

    real, sharded_attention.attend_request = sharded_attention.attend_request, number
    qkv = [normal(1, B, length, H, K)] * 2 + [normal(2, B, length, H, U)]
    found = jax.jit(
        lambda: sharded_attention.attend_on_mesh(request(qkv, normal(3, H, H), causal))
    )()
    sharded_attention.attend_request = real
    return np.asarray(found)[0, :, 0, 0].tolist()


def main() -> None:
    results = {}
    for parts in PARTS:
        length = 2 * parts * LANES
        expected = output_and_gradients(length)
        with jax.set_mesh(make_mesh(MeshConfig(data=4 // parts, model=parts))):
            actual = output_and_gradients(length)
            devices = {
                name: devices_of_queries(length, name == "causal") for name in ("causal", "all")
            }
            odd = devices_of_queries(length + parts, causal=True)
        errors = [
            float(abs(got - wanted).max() / abs(wanted).max())
            for got, wanted in zip(actual, expected, strict=True)
        ]
        results[parts] = {"errors": errors, "devices": {**devices, "odd": odd}}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
