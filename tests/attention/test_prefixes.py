"""Softmax over prefixes of keys is softmax by its definition, forward and backward."""

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import AttentionSpec, Request, make_request
from hyla_lm.attention.reference import attend_block
from hyla_lm.attention.softmax.prefixes import attend_prefixes
from tests.model.small_model import QUICK_COMPILE

SPEC = AttentionSpec("softmax", "linear", "relu")
# Sums of up to 300 products in another order, in float32; the largest result is about 20.
TOLERANCE = 2e-5


def request(queries: int, keys: int, *operands: Any, **options: Any) -> Request:
    rng = np.random.default_rng(0)
    shapes = ((2, queries, 3, 10), (2, keys, 3, 10), (2, keys, 3, 6))
    drawn = [jnp.asarray(np.float32(rng.normal(size=shape))) for shape in shapes]
    return make_request(*(operands or drawn), SPEC, **options)


def documents(length: int) -> jax.Array:
    """Two rows of documents: of 50 tokens each, and of one each after the first 140."""
    return jnp.stack([jnp.arange(length) // 50, jnp.maximum(jnp.arange(length) - 140, 0)])


def outputs(
    run: Any, queries: int, keys: int, options: dict[str, Any], compiler: dict[str, Any]
) -> list[jax.Array]:
    """The result, and the gradients of q, k and v for a cotangent that differs everywhere."""

    def both(*qkv: jax.Array) -> list[jax.Array]:
        y, pull_back = jax.vjp(lambda *qkv: run(request(queries, keys, *qkv, **options)), *qkv)
        return [y, *pull_back(jnp.cos(jnp.arange(y.size).reshape(y.shape)))]

    drawn = request(queries, keys)
    compiled = jax.jit(both, compiler_options=compiler)
    return compiled(drawn.q_BxTxHxK, drawn.k_BxSxHxK, drawn.v_BxSxHxU)


@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        (300, 300, {"causal": True, "segment_ids": documents(300)}),
        (1, 1, {"causal": True}),
        (131, 200, {"causal": True, "q_offset": 20, "segment_ids": documents(200)}),
        (131, 200, {"causal": True, "q_offset": 69}),
        (131, 200, {"causal": False}),
    ],
)
def test_it_is_the_definition(queries: int, keys: int, options: dict[str, Any]) -> None:
    found = outputs(attend_prefixes, queries, keys, options, {})
    expected = outputs(attend_block, queries, keys, options, QUICK_COMPILE)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=TOLERANCE)


def test_large_scores_overflow_nothing() -> None:
    drawn = request(200, 200)
    operands = (drawn.q_BxTxHxK * 1e4, drawn.k_BxSxHxK, drawn.v_BxSxHxU)

    def loss(*operands: jax.Array) -> jax.Array:
        return attend_prefixes(request(200, 200, *operands, causal=True)).sum()

    value, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(*operands)
    assert all(jnp.isfinite(x).all() for x in (value, *gradients))


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    """As no key has the document of the query: the first of a cache that holds another."""
    here, other = jnp.ones((2, 1), jnp.int32), jnp.zeros((2, 3), jnp.int32)
    assert not attend_prefixes(
        replace(request(1, 3), q_segment_BxT=here, k_segment_BxS=other)
    ).any()


def test_a_block_of_queries_meets_no_key_ahead_of_all_of_them() -> None:
    """Blocks of 128 of the 300 queries see 128, 256 and 300 of the keys."""
    text = str(jax.make_jaxpr(lambda: attend_prefixes(request(300, 300, causal=True)))())
    found = re.findall(r"f32\[2,3,(\d+),(\d+)\] = exp ", text)
    assert found == [("128", "128"), ("128", "256"), ("44", "300")]
