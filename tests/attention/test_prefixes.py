"""Softmax over prefixes of keys is softmax by its definition, forward and backward."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import VARIANTS, AttentionSpec, Request, choose, make_request
from hyla_lm.attention.reference import attend_block
from hyla_lm.attention.softmax.prefixes import MAX_QUERIES, attend_prefixes, unsupported
from tests.model.small_model import QUICK_COMPILE

AS_FOR_USERS: Mapping[str, Any] = {}
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
    run: Any, queries: int, keys: int, options: dict[str, Any], compiler: Mapping[str, Any]
) -> list[jax.Array]:
    """The result, and the gradients of q, k and v for a cotangent that differs everywhere."""

    def both(*qkv: jax.Array) -> list[jax.Array]:
        y, pull_back = jax.vjp(lambda *qkv: run(request(queries, keys, *qkv, **options)), *qkv)
        return [y, *pull_back(jnp.cos(jnp.arange(y.size).reshape(y.shape)))]

    drawn = request(queries, keys)
    compiled = jax.jit(both, compiler_options=dict(compiler))
    return compiled(drawn.q_BxTxHxK, drawn.k_BxSxHxK, drawn.v_BxSxHxU)


@pytest.mark.parametrize("segmented", [True, False])
@pytest.mark.parametrize(
    ("queries", "keys", "options"),
    [
        (300, 300, {"causal": True}),
        pytest.param(128, 128, {"causal": True}, marks=pytest.mark.full),
        (1, 1, {"causal": True}),
        pytest.param(131, 200, {"causal": True, "q_offset": 69}, marks=pytest.mark.full),
        (131, 200, {"causal": True, "q_offset": 20}),
        (131, 200, {"causal": False}),
    ],
)
def test_it_is_the_definition(
    queries: int, keys: int, options: dict[str, Any], segmented: bool
) -> None:
    if segmented:
        options = {**options, "segment_ids": documents(keys)}
    found = outputs(attend_prefixes, queries, keys, options, AS_FOR_USERS)
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
    drawn = request(1, 3)
    asked = Request(
        **{
            **{name: getattr(drawn, name) for name in drawn.__dataclass_fields__},
            "q_segment_BxT": jnp.ones((2, 1), jnp.int32),
            "k_segment_BxS": jnp.zeros((2, 3), jnp.int32),
        }
    )
    assert not attend_prefixes(asked).any()


def test_a_block_of_queries_meets_no_key_ahead_of_all_of_them() -> None:
    """Blocks of 128 of the 300 queries see 128, 256 and 300 of the keys."""

    def scores(causal: bool) -> list[int]:
        text = str(jax.make_jaxpr(lambda: attend_prefixes(request(300, 300, causal=causal)))())
        found = re.findall(r"f32\[2,3,(\d+),(\d+)\] = exp ", text)
        return [int(queries) * int(keys) for queries, keys in found]

    assert scores(causal=True) == [128 * 128, 128 * 256, 44 * 300]
    assert scores(causal=False) == [128 * 300, 128 * 300, 44 * 300]


def test_it_says_what_it_cannot_do() -> None:
    long = jax.eval_shape(lambda: request(MAX_QUERIES + 1, MAX_QUERIES + 1, causal=True))
    assert unsupported(long) == "softmax of more than 2048 queries"
    x = jnp.zeros((1, 4, 2, 8))
    assert unsupported(make_request(x, x, x, VARIANTS["hyla"])) == "a hypernetwork"
    assert "offset" in unsupported(request(3, 5, causal=True, q_offset=jnp.asarray(2)))
    assert unsupported(request(3, 3, causal=True)) == ""


def test_it_is_chosen_on_a_cpu_for_many_pairs() -> None:
    assert choose(request(200, 200, causal=True)).name == "softmax_prefixes"
    assert choose(request(200, 200, causal=True), "blocked").name == "softmax_prefixes"
    assert choose(request(20, 20, causal=True)).name == "reference"
