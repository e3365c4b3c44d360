"""Dense layers, over all tokens as the rows of one matrix.

The gradient of a weight sums over rows and positions. As two axes XLA for CPU transposes what
stands before the layer to make them one, and computes it again on the way: a third of a train
step. As one axis it does not.
"""

import math
from typing import Any

import flax.linen as nn
import jax
from jax import lax

from hyla_lm.attention.platform import platform


def product_of_rows(
    x: jax.Array, kernel: jax.Array, dimensions: Any, *arguments: Any, **options: Any
) -> jax.Array:
    """`lax.dot_general` of the last axes of x and the first of the kernel, as layers ask for it."""
    (x_axes, _), _ = dimensions
    if platform() != "cpu":
        return lax.dot_general(x, kernel, dimensions, *arguments, **options)
    count = len(x_axes)
    before, summed, after = x.shape[:-count], x.shape[-count:], kernel.shape[count:]
    rows, inner = x.reshape(-1, math.prod(summed)), kernel.reshape(math.prod(summed), -1)
    y = lax.dot_general(rows, inner, (((1,), (0,)), ((), ())), *arguments, **options)
    return y.reshape(*before, *after)


def dense(size: int, use_bias: bool, dtype: Any, name: str | None = None) -> nn.Dense:
    """x W + b over the last axis."""
    return nn.Dense(size, use_bias, dtype, dot_general=product_of_rows, name=name)


def dense_heads(
    features: tuple[int, ...] | int,
    use_bias: bool,
    dtype: Any,
    name: str,
    axis: int | tuple[int, ...] = -1,
) -> nn.DenseGeneral:
    """x W + b from the last axes of x to some axes, such as heads and their units."""
    return nn.DenseGeneral(
        features, axis, use_bias=use_bias, dtype=dtype, dot_general=product_of_rows, name=name
    )
