"""Every attention variant against the authors' modules and the paper's formulas."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention import blocked
from hyla_lm.attention.attend import attend, latent_codes
from hyla_lm.attention.spec import VARIANTS, AttentionSpec
from tests.golden.arrays import assert_close, tree_of
from tests.model.small_model import QUICK_COMPILE

Load = Callable[[str], dict[str, np.ndarray]]
Params = dict[str, dict[str, jax.Array]]

AUTHORS = {
    "softmax": "softmax",
    "linear": "linear",
    "linear_rmshead": "linear_rms_head",
    "hyla": "hyla",
    "hyla_no_rmshead": "hyla_no_rms_head",
    "hyla_no_nonlin": "hyla_no_nonlinearity",
    "hyla_no_nonlin_no_rmshead": "hyla_no_nonlinearity_no_rms_head",
    "hyla_softmax_over_keys": "hyla_softmax_no_rms_head",
}
PHI = {name: name for name in ("relu", "silu", "sigmoid", "tanh", "gelu_erf")}
PHI["gelu_tanh"] = "gelu"

SPECS: dict[str, AttentionSpec] = {
    **{
        f"attn_{theirs}_{case}": VARIANTS[ours] for theirs, ours in AUTHORS.items() for case in "ac"
    },
    **{f"attn_{name}_d": VARIANTS[name] for name in ("softmax", "linear", "hyla")},
    **{
        f"derived_hyla_{theirs}_c": replace(VARIANTS["hyla"], activation=ours)
        for theirs, ours in PHI.items()
    },
    "derived_deep_c": VARIANTS["hyla_deep"],
    "derived_linear_rms_nonlinear_value_c": VARIANTS["linear_rms_head_nonlinear_value"],
    "derived_softmax_then_rmshead_c": VARIANTS["hyla_softmax"],
}

# float32 on both sides: sums of up to 16 products of order 1 round differently by a few 1e-7.
OUTPUT_TOLERANCE = 1e-5
# The gradient of RMSHead divides by sums of squares, which magnifies that rounding.
GRADIENT_TOLERANCE = 2e-4


def project(params: Params, x: jax.Array, name: str) -> jax.Array:
    return jnp.einsum("btd,dhk->bthk", x, params[name]["kernel"]) + params[name]["bias"]


def attention_layer(
    params: Params,
    x: jax.Array,
    bias: jax.Array | None,
    spec: AttentionSpec,
    causal: bool,
    implementation: str,
) -> jax.Array:
    y = attend(
        project(params, x, "query"),
        project(params, x, "key"),
        project(params, x, "value"),
        spec,
        bias=bias,
        causal=causal,
        deep_kernel_HxUxU=params["value2"]["kernel"] if "value2" in params else None,
        implementation=implementation,
    )
    return jnp.einsum("bthu,hud->btd", y, params["out"]["kernel"]) + params["out"]["bias"]


@pytest.mark.parametrize("implementation", ["reference", "blocked"])
@pytest.mark.parametrize("name", SPECS)
def test_output_and_every_gradient(
    golden: Load, name: str, implementation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "BLOCK_SIZE", 4)
    arrays, spec = golden(name), SPECS[name]

    def loss(params: Params, x: jax.Array, bias: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        y = attention_layer(params, x, bias, spec, "mask" in arrays, implementation)
        return jnp.sum(y * arrays["ct"]), y

    bias = jnp.asarray(arrays["bias"]) if "bias" in arrays else None
    differentiated = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    run = jax.jit(differentiated, compiler_options=QUICK_COMPILE)
    params, x = tree_of(arrays, "param"), jnp.asarray(arrays["x"])
    (_, y), (d_params, d_x, d_bias) = run(params, x, bias)
    codes = latent_codes(
        project(params, x, "query"),
        project(params, x, "key"),
        spec,
        bias=bias,
        causal="mask" in arrays,
    )
    assert_close(codes, arrays["attn_weights"], OUTPUT_TOLERANCE)

    assert_close(y, arrays["y"], OUTPUT_TOLERANCE)
    assert_close(d_x, arrays["grad_x"], GRADIENT_TOLERANCE)
    assert_close(d_params, tree_of(arrays, "grad_param"), GRADIENT_TOLERANCE)
    if d_bias is not None and "grad_bias" in arrays:
        assert_close(d_bias, arrays["grad_bias"], GRADIENT_TOLERANCE)
