"""FLOPs a token by formula against the products that the program has."""

from collections.abc import Iterator
from math import prod
from typing import Any

import jax
import pytest
from jax.extend.core import jaxprs_in_params

from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.flops import train_flops_per_token
from tests.model.small_model import LENGTH, VOCABULARY, shapes, small, tokens


def multiply_adds(jaxpr: Any) -> Iterator[int]:
    """Of every matrix product of a program, nested programs' too."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (summed, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            yield prod(equation.outvars[0].aval.shape) * prod(left[axis] for axis in summed)
        for inner in jaxprs_in_params(equation.params):
            yield from multiply_adds(inner)


@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "softmax", "num_heads": 4, "num_kv_heads": 2, "value_dim": 6},
        {"attention": "softmax", "gated_attention": True, "qk_norm": True, "norm": "rms"},
        {"attention": "hyla", "gated_attention": True, "value_dim": 6, "feedforward": "swiglu"},
        {"attention": "softmax", "logit_soft_cap": 30.0, "num_layers": 3},
    ],
    ids=str,
)
def test_flops_are_those_of_the_products(fields: dict[str, Any]) -> None:
    """Without the causal mask, which the formula halves and the reference does not."""
    config = small(causal=False, attention_implementation="reference", **fields)
    model, ids = Decoder(config, Tokens(VOCABULARY)), tokens(batch=1)
    forward = jax.make_jaxpr(lambda params: model.apply({"params": params}, ids))
    counted = sum(multiply_adds(forward(shapes(model, ids)).jaxpr))
    assert train_flops_per_token(config, Tokens(VOCABULARY), LENGTH) == 6 * counted / LENGTH
