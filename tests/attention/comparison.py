"""Random operands of attention, packed documents, and one implementation beside another."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def documents(rows: int, length: int) -> jax.Array:
    """Segment ids of packed documents with random ends."""
    starts = np.random.default_rng(5).random((rows, length)) < 0.05
    return jnp.asarray(np.cumsum(starts, axis=1))


def output_and_gradients(
    function: Callable[..., jax.Array], *operands: Any, compiler: Mapping[str, Any] | None = None
) -> list[Any]:
    """The output, and the gradients of operands for a cotangent that differs everywhere."""

    def both(*operands: Any) -> list[Any]:
        y, pull_back = jax.vjp(function, *operands)
        return [y, *pull_back(normal(6, *y.shape).astype(y.dtype))]

    return jax.jit(both, compiler_options=dict(compiler or {}))(*operands)


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Relative to the largest entry of each array."""

    def close(got: Any, wanted: Any) -> None:
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        dtype = jnp.promote_types(wanted.dtype, jnp.float32)
        got, wanted = np.asarray(got, dtype), np.asarray(wanted, dtype)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())

    jax.tree.map(close, actual, expected)
