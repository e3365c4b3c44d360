"""Programs to count on TPU; each returns (function, abstract arguments)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import VARIANTS, attend

Program = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]
HEADS, HEAD_DIM = 8, 64


def forward(
    length: int = 512, attention: str = "hyla", implementation: str = "pallas_tpu", batch: int = 1
) -> Program:
    """Causal attention of one layer, bfloat16."""
    x = jax.ShapeDtypeStruct((batch, length, HEADS, HEAD_DIM), jnp.bfloat16)

    spec = VARIANTS[attention]
    of_pairs = spec.pair_network.weights if spec.pair_network else {}
    weights = [
        jax.ShapeDtypeStruct((batch, length) * weight.by_query + (HEADS,) * len(weight.axes), "f4")
        for weight in of_pairs.values()
    ]

    def attention_layer(q: jax.Array, k: jax.Array, v: jax.Array, *weights: jax.Array) -> jax.Array:
        return attend(
            *(q, k, v, spec),
            causal=True,
            weights=dict(zip(of_pairs, weights, strict=True)),
            implementation=implementation,
        )

    return attention_layer, (x, x, x, *weights)


def both(**options: Any) -> Program:
    """The output and the gradient of its sum with respect to its operands."""
    function, shapes = forward(**options)

    def output_and_gradients(*operands: jax.Array) -> Any:
        y, pull_back = jax.vjp(function, *operands)
        return y, pull_back(jnp.ones_like(y))

    return output_and_gradients, shapes
