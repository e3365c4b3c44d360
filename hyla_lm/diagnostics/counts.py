"""Histograms that are counted on the device."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

BINS = 64


class Counts(NamedTuple):
    """How many values are in each of BINS equal bins from `low` to `high`, with their moments."""

    count_N: jax.Array
    low: jax.Array
    high: jax.Array
    sum: jax.Array
    sum_squares: jax.Array


def counts(values: Sequence[jax.Array], counted: jax.Array | None = None) -> Counts:
    """The counts of all values, or of those that are `counted` (broadcastable to each array).

    Bins are compared with, not scattered into, so that arrays split over devices stay where they
    are.
    """
    is_counted = True if counted is None else counted
    arrays = [x.astype(jnp.float32) for x in values]

    def total(of: list[jax.Array]) -> jax.Array:
        return sum((jnp.sum(jnp.where(is_counted, x, 0)) for x in of), jnp.zeros(()))

    low = jnp.stack([jnp.min(jnp.where(is_counted, x, jnp.inf)) for x in arrays]).min()
    high = jnp.stack([jnp.max(jnp.where(is_counted, x, -jnp.inf)) for x in arrays]).max()
    per_value = BINS / jnp.where(high > low, high - low, 1)

    def count(x: jax.Array) -> jax.Array:
        bin_of = jnp.clip(((x - low) * per_value).astype(jnp.int32), 0, BINS - 1)
        bin_of = jnp.where(is_counted, bin_of, -1)
        axes = range(1, bin_of.ndim + 1)
        bins = jnp.arange(BINS).reshape(BINS, *[1] * bin_of.ndim)
        return jnp.sum(bin_of[None] == bins, axis=axes, dtype=jnp.int32)

    count_N = sum((count(x) for x in arrays), jnp.zeros(BINS, jnp.int32))
    return Counts(count_N, low, high, total(arrays), total([jnp.square(x) for x in arrays]))
