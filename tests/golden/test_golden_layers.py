"""Relative position buckets and feed-forward layers against independent implementations."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model.layers import GeluMlp, MixtureOfExperts, SwiGlu, relative_buckets
from tests.golden.arrays import assert_close, tree_of

Load = Callable[[str], dict[str, np.ndarray]]
FLOAT32 = jnp.dtype("float32")

SIZES = [(16, 16, 16), (32, 32, 32), (36, 36, 36), (128, 128, 128), (20, 8, 8), (64, 32, 48)]

FEEDFORWARDS: dict[str, tuple[nn.Module, dict[str, str]]] = {
    "ffn_gelu_mlp": (GeluMlp(10, True, FLOAT32), {"Dense_0": "up", "Dense_1": "down"}),
    "ffn_swiglu": (
        SwiGlu(10, FLOAT32),
        {"Dense_0": "gate", "Dense_1": "up", "Dense_2": "down"},
    ),
    "derived_moe": (
        MixtureOfExperts(10, 5, 2, FLOAT32),
        {"gate": "gate", "down": "up", "up": "down"},
    ),
}

# float32 sums of ten products on both sides: rounding of a few 1e-7.
OUTPUT_TOLERANCE = 1e-5
# Two such sums in a row, with entries of order 10.
GRADIENT_TOLERANCE = 2e-4


def test_relative_buckets(golden: Load) -> None:
    arrays, compiled = golden("relpos"), jax.jit(relative_buckets, static_argnums=(2, 3))
    for length, buckets, max_distance in SIZES:
        expected = arrays[f"bucket_T{length}_nb{buckets}_md{max_distance}_uni"]
        actual = compiled(*[np.arange(length)] * 2, buckets, max_distance)
        np.testing.assert_array_equal(actual, expected)
    bucket_TxS = compiled(*[np.arange(9)] * 2, 9, 9)
    np.testing.assert_array_equal(arrays["table_H3_nb9"][None, :, bucket_TxS], arrays["bias_T9"])


@pytest.mark.parametrize("name", FEEDFORWARDS)
def test_feedforward_output_and_every_gradient(golden: Load, name: str) -> None:
    arrays, (module, renamed) = golden(name), FEEDFORWARDS[name]

    def ours(path: str) -> str:
        layer, *rest = path.split("/")
        return "/".join([renamed[layer], *rest])

    def loss(params: dict, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        y = module.apply({"params": params}, x)
        return jnp.sum(y * arrays["ct"]), y

    params, x = tree_of(arrays, "param", ours), jnp.asarray(arrays["x"])
    differentiated = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, y), (d_params, d_x) = differentiated(params, x)

    assert_close(y, arrays["y"], OUTPUT_TOLERANCE)
    assert_close(d_x, arrays["grad_x"], GRADIENT_TOLERANCE)
    assert_close(d_params, tree_of(arrays, "grad_param", ours), GRADIENT_TOLERANCE)
