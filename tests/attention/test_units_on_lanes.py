"""The TPU kernels with units on lanes, in the interpreter: outputs and gradients in bfloat16."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import attend
from hyla_lm.attention.hyla import pallas_tpu
from hyla_lm.attention.spec import VARIANTS
from tests.attention.comparison import assert_close, normal
from tests.attention.test_pallas_tpu import (
    Case,
    errors_against_float64,
    operands,
    root_mean_square,
)

# bfloat16 keeps 8 bits. An entry of y, a sum of products of three rounded terms, is within 2 % of
# the largest. Gradients sum products of up to five and go through RMSHead: reference and kernel err
# by 2 to 3 % in root mean square. A pair wrongly hidden or seen is one of the about 65 that a query
# sees, so it changes the query's gradient by 12 %, and there is one for many queries.
OUTPUT_TOLERANCE = 0.02
GRADIENT_TOLERANCE = 0.04


@pytest.fixture(autouse=True)
def only_these_kernels(monkeypatch: pytest.MonkeyPatch, interpreted: None) -> None:
    monkeypatch.setattr(pallas_tpu, "QueriesForward", None)
    monkeypatch.setattr(pallas_tpu, "QueriesGradient", None)


def test_errors_are_the_reference_s() -> None:
    """Every product rounds its operands as the reference rounds them, in rows of documents.

    y is rounded once more as it is laid out and errs as the reference's rounded y. Within 1 %.
    """
    case = Case(130, heads=7, key_dim=16, value_dim=61, keys=140, offset=10, segments=True)
    (error, plain, exact), *gradients = errors_against_float64(case, "bfloat16")
    rounded = np.float64(jnp.asarray(plain + exact).astype(jnp.bfloat16)) - exact
    assert root_mean_square(error) <= root_mean_square(rounded) * 1.01
    assert root_mean_square(plain) <= OUTPUT_TOLERANCE * root_mean_square(exact)
    for error, plain, exact in gradients:
        assert root_mean_square(error) <= root_mean_square(plain) * 1.01
        assert root_mean_square(plain) <= GRADIENT_TOLERANCE * root_mean_square(exact)


@pytest.mark.full
def test_codes_that_read_out_are_others() -> None:
    """A gated readout's codes make z and read it out differently; its weights have a gradient."""
    spec, case = VARIANTS["hyla_gated"], Case(100, heads=8, key_dim=8, value_dim=64)
    qkv = [x.astype(jnp.bfloat16) for x in operands(case)]
    weight = 0.5 * normal(7, 8, 8)
    dy = normal(6, 1, 100, 8, 64).astype(jnp.bfloat16)

    def outputs(implementation: str, dtype: Any) -> list[jax.Array]:
        def attention(*x: jax.Array) -> jax.Array:
            options = {"weights": {"gate": x[3]}, "implementation": implementation}
            return attend(*x[:3], spec, causal=True, **options)

        y, pull_back = jax.vjp(attention, *(x.astype(dtype) for x in qkv), weight)
        return [y, *pull_back(dy.astype(dtype))]

    y, *gradients = outputs("pallas_tpu", jnp.bfloat16)
    exact_y, *exact = outputs("reference", jnp.float32)
    assert_close(y.astype(jnp.float32), exact_y, OUTPUT_TOLERANCE)
    for got, gradient in zip(gradients, exact, strict=True):
        error = np.float64(got) - np.float64(gradient)
        limit = GRADIENT_TOLERANCE * root_mean_square(np.float64(gradient))
        assert root_mean_square(error) <= limit
