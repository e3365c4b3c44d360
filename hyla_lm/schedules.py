"""Learning rates by update: a linear rise from 0, the peak, and a fall of some shape."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

Schedule = Callable[[Any], jax.Array]
DECAYS = ("linear", "1-sqrt")
# What is left of the fall, from 1 to 0, by the share of it that is over.
SHAPES: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {
        "cosine": lambda progress: 0.5 * (1 + jnp.cos(jnp.pi * progress)),
        "linear": lambda progress: 1 - progress,
        "1-sqrt": lambda progress: 1 - jnp.sqrt(progress),
    }
)


def rise_hold_fall(
    peak: Any,
    warmup_steps: Any,
    begin: Any,
    end: Any,
    final_fraction: float = 0.1,
    shape: str = "cosine",
) -> Schedule:
    """Learning rate of update n, counted from 0: linear from 0 to the peak, kept until `begin`.

    Then it falls to a fraction of the peak at `end`. All numbers may be traced.
    """

    def schedule(count: Any) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        rising = peak * step / jnp.maximum(warmup_steps, 1)
        progress = jnp.clip((step - begin) / (end - begin), 0, 1)
        falling = peak * (final_fraction + (1 - final_fraction) * SHAPES[shape](progress))
        return jnp.where(step < warmup_steps, rising, falling)

    return schedule
