"""Rotary embeddings depend on relative distance only; T5 buckets widen with distance."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model import layers
from hyla_lm.model.layers import relative_buckets, rotate

LENGTH, HEADS, SIZE = 6, 2, 8


def at(start: int, length: int = LENGTH) -> jax.Array:
    return start + jnp.arange(length)[None]


def queries_and_keys() -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    q, k = rng.normal(size=(2, 1, LENGTH, HEADS, SIZE))
    return jnp.asarray(q, jnp.float32), jnp.asarray(k, jnp.float32)


def test_rotary_scores_depend_on_distance_alone() -> None:
    q, k = queries_and_keys()

    def scores(start: int) -> jax.Array:
        return jnp.einsum("bthk,bshk->bhts", rotate(q, at(start)), rotate(k, at(start)))

    # An angle of 500 radians is known to 500 * 2^-24 = 3e-5 in float32; entries are of order 1.
    np.testing.assert_allclose(scores(500), scores(0), atol=2e-4)
    assert not np.allclose(scores(0), jnp.einsum("bthk,bshk->bhts", q, k), atol=0.1)


def test_rotary_pairs_a_dimension_with_the_one_half_a_head_further() -> None:
    unit = jnp.zeros((1, 1, 1, 4)).at[..., 0].set(1)
    slow = jnp.zeros((1, 1, 1, 4)).at[..., 1].set(1)
    position = jnp.full((1, 1), 3)
    # cos and sin of float32 angles: a few 1e-7.
    np.testing.assert_allclose(
        rotate(unit, position)[0, 0, 0], [math.cos(3), 0, math.sin(3), 0], atol=1e-6
    )
    np.testing.assert_allclose(
        rotate(slow, position)[0, 0, 0], [0, math.cos(0.03), 0, math.sin(0.03)], atol=1e-6
    )
    np.testing.assert_allclose(
        rotate(slow, position, 100.0)[0, 0, 0], [0, math.cos(0.3), 0, math.sin(0.3)], atol=1e-6
    )


@pytest.mark.parametrize(
    ("distance", "bucket"),
    [(-3, 0), (0, 0), (1, 1), (3, 3), (4, 4), (5, 4), (6, 5), (7, 5), (9, 6), (12, 7), (99, 7)],
)
def test_one_way_buckets_are_exact_then_logarithmic(distance: int, bucket: int) -> None:
    """Of 8 buckets 4 are exact, and 4 split 4..16 evenly in the logarithm: 4, 5.7, 8, 11.3."""
    query, key = jnp.array([100]), jnp.array([100 - distance])
    assert relative_buckets(query, key, 8, 16).item() == bucket


def test_the_form_of_other_devices_is_that_of_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    x_BxTxHxK = jnp.asarray(np.float32(np.random.default_rng(0).normal(size=(2, 5, 3, 6))))
    position_BxT = jnp.broadcast_to(jnp.arange(5), (2, 5))
    expected = rotate(x_BxTxHxK, position_BxT)
    monkeypatch.setattr(layers, "platform", lambda: "tpu")
    np.testing.assert_allclose(rotate(x_BxTxHxK, position_BxT), expected, atol=1e-6)
