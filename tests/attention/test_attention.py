"""The contract of `attend`: shapes, dtypes, and errors that say what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import VARIANTS, AttentionSpec, attend, latent_codes
from hyla_lm.errors import UserError

B, T, H, K, U = 1, 4, 2, 3, 5


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape)


Q, KEY, V = zeros(B, T, H, K), zeros(B, T, H, K), zeros(B, T, H, U)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("normalization", "layer_norm"),
        ("value_network", "mlp"),
        ("activation", "elu"),
        ("value_depth", 3),
    ],
)
def test_a_spec_of_unknown_parts_names_field_value_and_choices(field: str, value: object) -> None:
    parts = {"normalization": "rms_head", "value_network": "hypernetwork", field: value}
    with pytest.raises(UserError, match=rf"AttentionSpec\.{field} = {value!r} must be one of \("):
        AttentionSpec(**parts)


def test_a_linear_value_network_has_one_layer() -> None:
    with pytest.raises(UserError, match=r"value_depth = 2 must be one of \(1,\)"):
        AttentionSpec("identity", "linear", value_depth=2)


@pytest.mark.parametrize(
    ("name", "mixes"),
    [("softmax", False), ("linear", False), ("linear_rms_head", True), ("hyla", True)],
)
def test_heads_mix_through_rms_head_and_hypernetwork(name: str, mixes: bool) -> None:
    assert VARIANTS[name].mixes_heads is mixes


def test_deep_variant_asks_for_its_kernel() -> None:
    with pytest.raises(UserError, match="deep_kernel_HxUxU goes with value_depth 2"):
        attend(Q, KEY, V, VARIANTS["hyla_deep"])


def test_shallow_variant_refuses_a_deep_kernel() -> None:
    with pytest.raises(UserError, match="deep_kernel_HxUxU goes with value_depth 2"):
        attend(Q, KEY, V, VARIANTS["hyla"], deep_kernel_HxUxU=zeros(H, U, U))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (zeros(B, T, H, K + 1), V),
        (zeros(B, T, H + 1, K), zeros(B, T, H + 1, U)),
        (zeros(B + 1, T, H, K), zeros(B + 1, T, H, U)),
        (KEY, zeros(B, T + 1, H, U)),
        (KEY, zeros(B, T, H + 1, U)),
    ],
    ids=["key_size", "heads", "batch", "value_length", "value_heads"],
)
def test_shapes_that_do_not_fit_are_named(key: jax.Array, value: jax.Array) -> None:
    with pytest.raises(UserError, match="want BxTxHxK, BxSxHxK, BxSxHxU") as error:
        attend(Q, key, value, VARIANTS["softmax"])
    assert str(key.shape) in str(error.value)


@pytest.mark.parametrize("implementation", ("reference", "blocked"))
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_output_has_the_dtype_of_v_and_the_shape_of_the_queries(
    implementation: str, dtype: jnp.dtype
) -> None:
    y = attend(Q, KEY, V.astype(dtype), VARIANTS["hyla"], implementation=implementation)
    assert (y.dtype, y.shape) == (dtype, (B, T, H, U))


def test_latent_codes_are_float32() -> None:
    query = Q.astype(jnp.bfloat16)
    codes = latent_codes(query, query, VARIANTS["hyla"])
    assert (codes.dtype, codes.shape) == (jnp.float32, (B, H, T, T))


def test_softmax_is_that_of_the_field() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(np.float32(rng.normal(size=(2, 9, 3, 4)))) for _ in range(3))
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    actual = attend(q, k, v, VARIANTS["softmax"], causal=True)
    # Two float32 programs of sums over 9 terms of order 1.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
