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


def below(bits: jax.Array, bound: int) -> jax.Array:
    """Uniform integers below the bound; their 2^32 bit patterns are shared evenly up to one."""
    return (bits % jnp.uint32(bound)).astype(jnp.int32)


def orders(bits: jax.Array) -> jax.Array:
    """Uniform permutations along the last axis, but for ties, of probability about n^2 / 2^33."""
    return jnp.argsort(bits, axis=-1)
