"""The contract of `attend`: shapes, dtypes, and errors that say what to do."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.attention.attend import attend, latent_codes
from hyla_lm.attention.spec import VARIANTS, AttentionSpec
from hyla_lm.errors import UserError

B, T, H, K, U = 1, 4, 2, 3, 5


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape)


Q, KEY, V = zeros(B, T, H, K), zeros(B, T, H, K), zeros(B, T, H, U)


def test_a_spec_of_an_unknown_part_names_the_choices() -> None:
    with pytest.raises(UserError, match=r"value_depth=3\): value_depth must be one of \(1, 2\)"):
        AttentionSpec("rms_head", "hypernetwork", value_depth=3)


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
