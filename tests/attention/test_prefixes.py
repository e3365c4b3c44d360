"""Softmax over prefixes of keys is softmax by its definition, forward and backward."""

import re
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.attention.reference import attend_block
from hyla_lm.attention.request import make_request
from hyla_lm.attention.softmax.prefixes import attend_prefixes
from hyla_lm.attention.spec import AttentionSpec
from tests.attention.comparison import assert_close, normal, output_and_gradients
from tests.model.small_model import QUICK_COMPILE

SPEC = AttentionSpec("softmax", "linear", "relu")
# Sums of up to 300 products in another order, in float32.
TOLERANCE = 5e-6


def operands(queries: int, keys: int) -> list[jax.Array]:
    return [normal(1, 2, queries, 3, 10), normal(2, 2, keys, 3, 10), normal(3, 2, keys, 3, 6)]


def documents(length: int) -> jax.Array:
    """Two rows of documents: of 50 tokens each, and of one each after the first 140."""
    return jnp.stack([jnp.arange(length) // 50, jnp.maximum(jnp.arange(length) - 140, 0)])


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
    def attention(run: Any, *qkv: jax.Array) -> jax.Array:
        return run(make_request(*qkv, SPEC, **options))

    qkv = operands(queries, keys)
    found = output_and_gradients(partial(attention, attend_prefixes), *qkv)
    wanted = output_and_gradients(partial(attention, attend_block), *qkv, compiler=QUICK_COMPILE)
    assert_close(found, wanted, TOLERANCE)


def test_large_scores_overflow_nothing() -> None:
    q, k, v = operands(200, 200)

    def attention(*qkv: jax.Array) -> jax.Array:
        return attend_prefixes(make_request(*qkv, SPEC, causal=True))

    assert all(jnp.isfinite(x).all() for x in output_and_gradients(attention, 1e4 * q, k, v))


def test_a_query_that_sees_no_key_gets_zeros() -> None:
    """As no key has the document of the query: the first of a cache that holds another."""
    here, other = jnp.ones((2, 1), jnp.int32), jnp.zeros((2, 3), jnp.int32)
    request = make_request(*operands(1, 3), SPEC)
    assert not attend_prefixes(replace(request, q_segment_BxT=here, k_segment_BxS=other)).any()


def test_a_block_of_queries_meets_no_key_ahead_of_all_of_them() -> None:
    """Blocks of 128 of the 300 queries see 128, 256 and 300 of the keys."""
    request = make_request(*operands(300, 300), SPEC, causal=True)
    found = re.findall(
        r"f32\[2,3,(\d+),(\d+)\] = exp ", str(jax.make_jaxpr(lambda: attend_prefixes(request))())
    )
    assert found == [("128", "128"), ("128", "256"), ("44", "300")]
