"""Random integers and orders from the bits of a single call of the generator.

Each call costs half a second of compilation on CPU, and jax.random.permutation and randint make two
or three.
"""

from math import prod

import jax
import jax.numpy as jnp
import numpy as np

Shape = tuple[int, ...]


def random_bits(key: jax.Array, *shapes: Shape) -> list[jax.Array]:
    """Arrays of independent uint32 of these shapes."""
    sizes = [prod(shape) for shape in shapes]
    parts = jnp.split(jax.random.bits(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def below(bits: jax.Array, bound: int | jax.Array) -> jax.Array:
    """Uniform integers below the bound; their 2^32 bit patterns are shared evenly up to one."""
    return (bits % jnp.asarray(bound, jnp.uint32)).astype(jnp.int32)


def fraction(bits: jax.Array) -> jax.Array:
    """Uniform numbers in [0, 1), multiples of 2^-24."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def orders(bits: jax.Array) -> jax.Array:
    """Uniform permutations along the last axis, but for ties, of probability about n^2 / 2^33."""
    return jnp.argsort(bits, axis=-1)


def weighted(bits: jax.Array, weight_N: jax.Array) -> jax.Array:
    """A place in N, with probabilities in proportion to whole weights that are not all 0."""
    sums_N = jnp.cumsum(weight_N.astype(jnp.int32))
    return jnp.searchsorted(sums_N, below(bits, sums_N[-1]), side="right")
