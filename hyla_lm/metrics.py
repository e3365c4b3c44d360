"""A metric is a pair (sum, count), added over batches and divided once."""

import math
from collections.abc import Mapping

import jax

Pair = tuple[jax.Array, jax.Array]
Metrics = dict[str, Pair]
HostMetrics = dict[str, tuple[float, float]]


def to_host(metrics: Mapping[str, Pair]) -> HostMetrics:
    """Waits for the device and returns Python floats."""
    fetched = jax.device_get(dict(metrics))
    return {name: (float(total), float(count)) for name, (total, count) in fetched.items()}


def add(a: HostMetrics, b: HostMetrics) -> HostMetrics:
    """The summed metrics of both; a name that only one has is kept."""
    zero = (0.0, 0.0)
    return {
        name: (
            a.get(name, zero)[0] + b.get(name, zero)[0],
            a.get(name, zero)[1] + b.get(name, zero)[1],
        )
        for name in {**a, **b}
    }


def means(metrics: HostMetrics) -> dict[str, float]:
    """sum / count of each metric; NaN where nothing was counted."""
    return {name: total / count if count else math.nan for name, (total, count) in metrics.items()}
