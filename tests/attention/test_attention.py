"""The contract of `attend`: shapes, dtypes, and errors that say what to do."""

from typing import Any

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
    ("field", "value", "choices"),
    [
        ("normalization", "layer_norm", "'softmax', 'identity'"),
        ("activation", "elu", "'identity', 'relu'"),
        ("value_depth", 3, "1, 2"),
    ],
)
def test_a_spec_of_unknown_parts_names_field_value_and_choices(
    field: str, value: Any, choices: str
) -> None:
    parts = {"normalization": "rms_head", "value_network": "hypernetwork", field: value}
    said = rf"AttentionSpec\.{field} = {value!r} must be one of \({choices}"
    with pytest.raises(UserError, match=said):
        AttentionSpec(**parts)


@pytest.mark.parametrize(
    ("name", "mixes"),
    [("softmax", False), ("linear", False), ("linear_rms_head", True), ("hyla", True)],
)
def test_heads_mix_through_rms_head_and_hypernetwork(name: str, mixes: bool) -> None:
    assert VARIANTS[name].mixes_heads is mixes


@pytest.mark.parametrize(
    ("key", "value", "name", "options", "said"),
    [
        (zeros(B, T, H, K + 1), V, "softmax", {}, "want BxTxHxK, BxSxHxK, BxSxHxU"),
        (KEY, zeros(B, T + 1, H, U), "softmax", {}, "want BxTxHxK, BxSxHxK, BxSxHxU"),
        (KEY, V, "hyla_deep", {}, "goes with value_depth 2"),
        (KEY, V, "hyla", {"deep_kernel_HxUxU": zeros(H, U, U)}, "goes with value_depth 2"),
        (KEY, V, "talking_heads", {"weights": {"after": zeros(H, H)}}, "want before, after"),
        (KEY, V, "hyla", {"weights": {"after": zeros(H, H)}}, "want none"),
    ],
)
def test_operands_that_do_not_fit_are_named(
    key: jax.Array, value: jax.Array, name: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        attend(Q, key, value, VARIANTS[name], **options)


@pytest.mark.parametrize("implementation", ("reference", "blocked"))
def test_output_has_the_dtype_of_v_and_codes_are_float32(implementation: str) -> None:
    low = jnp.bfloat16
    y = attend(Q, KEY, V.astype(low), VARIANTS["hyla"], implementation=implementation)
    assert (y.dtype, y.shape) == (low, (B, T, H, U))
    codes = latent_codes(Q.astype(low), KEY.astype(low), VARIANTS["hyla"])
    assert (codes.dtype, codes.shape) == (jnp.float32, (B, H, T, T))


def test_softmax_is_that_of_the_field() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(np.float32(rng.normal(size=(2, 9, 3, 4)))) for _ in range(3))
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    actual = attend(q, k, v, VARIANTS["softmax"], causal=True)
    # Two float32 programs of sums over 9 terms of order 1.
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
