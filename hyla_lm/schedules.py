"""Learning rates by update: a linear rise from 0, the peak, and a fall of some shape."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
import numpy as np

Schedule = Callable[[Any], Any]
DECAYS = ("linear", "1-sqrt")
# What is left of the fall, from 1 to 0, by the share of it that is over.
SHAPES: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "cosine": lambda xp, progress: 0.5 * (1 + xp.cos(xp.pi * progress)),
        "linear": lambda xp, progress: 1 - progress,
        "1-sqrt": lambda xp, progress: 1 - xp.sqrt(progress),
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

    Then it falls to a fraction of the peak at `end`. All numbers may be traced; that of an update
    that is an int is computed here, by NumPy, and does not wait for a device.
    """

    def schedule(count: Any) -> Any:
        xp: Any = np if isinstance(count, int) else jnp
        step = xp.asarray(count, xp.float32)
        rising = peak * step / xp.maximum(xp.float32(warmup_steps), 1)
        progress = xp.clip((step - begin) / (end - begin), 0, 1)
        falling = peak * (final_fraction + (1 - final_fraction) * SHAPES[shape](xp, progress))
        return xp.where(step < warmup_steps, rising, falling)

    return schedule
