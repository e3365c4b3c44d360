"""Programs to count on TPU; each returns (function, abstract arguments)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention import VARIANTS, attend

Program = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]
HEADS, HEAD_DIM = 8, 64


def forward(
    length: int = 512, attention: str = "hyla", implementation: str = "pallas_tpu", batch: int = 1
) -> Program:
    """Causal attention of one layer, bfloat16."""
    x = jax.ShapeDtypeStruct((batch, length, HEADS, HEAD_DIM), jnp.bfloat16)

    def attention_layer(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v, VARIANTS[attention], causal=True, implementation=implementation)

    return attention_layer, (x, x, x)


def both(**options: Any) -> Program:
    """The output and the gradient of its sum with respect to q, k and v."""
    function, operands = forward(**options)

    def output_and_gradients(*qkv: jax.Array) -> Any:
        y, pull_back = jax.vjp(function, *qkv)
        return y, pull_back(jnp.ones_like(y))

    return output_and_gradients, operands
