"""Forms of the same decoder: with a cache, scanned, rematerialised, of the last positions alone.

tests/tasks/test_sampling.py decodes with the cache.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model.config import Features, Tokens
from hyla_lm.model.decoder import Decoder
from tests.model.small_model import (
    LENGTH,
    QUICK_COMPILE,
    TOLERANCE,
    VOCABULARY,
    parameters,
    shapes,
    small,
    tokens,
)


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"attention": ("linear", "hyla")}, [{"state"}, {"cached_key", "cached_value"}]),
        ({"attention": "linear_rms_head"}, [{"cached_key", "cached_value"}] * 2),
        ({"attention": "linear", "positions": "relative"}, [{"cached_key", "cached_value"}] * 2),
        ({"attention": "linear", "causal": False}, [{"cached_key", "cached_value"}] * 2),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_layers_whose_past_is_one_sum_keep_that_instead_of_keys_and_values(
    fields: dict[str, Any], kept: list[set[str]]
) -> None:
    model = Decoder(small(**fields), Tokens(VOCABULARY), cache_length=LENGTH)
    init = partial(model.init, cache_index=jnp.asarray(0))
    cache = jax.eval_shape(init, jax.random.key(0), tokens())["cache"]["blocks"]
    assert [set(cache[f"block_{layer}"]["attention"]) for layer in range(2)] == kept


def logits_and_gradients(model: Decoder, params: dict) -> tuple[jax.Array, dict]:
    def loss(params: dict) -> tuple[jax.Array, jax.Array]:
        logits = model.apply({"params": params}, tokens())
        return jnp.sum(jnp.sin(logits)), logits

    differentiated = jax.value_and_grad(loss, has_aux=True)
    (_, logits), gradients = jax.jit(differentiated, compiler_options=QUICK_COMPILE)(params)
    return logits, gradients


def repeats_stacked(params: dict, pattern_length: int) -> dict:
    """Parameters of separate layers as scan_layers keeps them: repeats along a leading axis."""
    layers = [params["blocks"][f"block_{i}"] for i in range(len(params["blocks"]))]
    blocks = {
        f"block_{i}": jax.tree.map(lambda *x: jnp.stack(x), *layers[i::pattern_length])
        for i in range(pattern_length)
    }
    return {**params, "blocks": blocks}


def assert_trees_close(actual: dict, expected: dict) -> None:
    def close(a: jax.Array, b: jax.Array) -> None:
        # Gradients sum over 24 tokens of two rows and pass RMSHead's quotient in four layers.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())

    jax.tree.map(close, actual, expected)


@pytest.fixture(scope="module")
def plain() -> tuple[Decoder, dict, jax.Array, dict]:
    """Four layers, each its own: parameters, logits and gradients."""
    model = Decoder(small(attention=("hyla", "softmax"), num_layers=4), Tokens(VOCABULARY))
    params = parameters(model, tokens())
    return model, params, *logits_and_gradients(model, params)


@pytest.mark.parametrize(("scan", "remat"), [(False, True), (True, True)])
def test_scan_and_remat_change_nothing(
    plain: tuple[Decoder, dict, jax.Array, dict], scan: bool, remat: bool
) -> None:
    model, params, expected_logits, expected = plain
    other = model.clone(config=replace(model.config, scan_layers=scan, remat=remat))
    arranged = repeats_stacked(params, 2) if scan else params
    logits, gradients = logits_and_gradients(other, arranged)
    np.testing.assert_allclose(logits, expected_logits, rtol=TOLERANCE, atol=TOLERANCE)
    assert_trees_close(gradients, repeats_stacked(expected, 2) if scan else expected)


def test_scanned_layers_start_different_from_each_other() -> None:
    model = Decoder(small(scan_layers=True), Tokens(VOCABULARY))
    params = jax.jit(model.init)(jax.random.key(0), tokens())["params"]
    first, second = params["blocks"]["block_0"]["attention"]["query"]["kernel"]
    assert not np.allclose(first, second)


def test_remat_recomputes_blocks_in_the_backward_pass() -> None:
    def saved(remat: bool) -> int:
        model = Decoder(small(remat=remat, mlp_dim=512), Tokens(VOCABULARY))

        def pull_back(params: dict) -> Any:
            return jax.vjp(lambda p: model.apply({"params": p}, tokens()), params)[1]

        kept = jax.eval_shape(pull_back, shapes(model, tokens()))
        return sum(leaf.size for leaf in jax.tree.leaves(kept))

    assert saved(True) < saved(False)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "softmax", "positions": "relative", "causal": False, "num_kv_heads": 1},
        {"attention": "linear", "num_layers": 1, "qk_norm": True, "gated_attention": True},
        {"attention": "hyla", "positions": "learned", "causal": False, "remat": True},
        {"attention": "hyla", "positions": "relative", "scan_layers": True},
    ],
    ids=["softmax", "linear", "hyla", "scanned"],
)
def test_last_answers_and_their_gradients_equal_those_of_all(fields: dict[str, Any]) -> None:
    answers = 7
    config = small(attention_dropout=0.3, **fields)
    whole = Decoder(config, Features(3, 2))
    x = jnp.asarray(np.float32(np.random.default_rng(0).normal(size=(2, LENGTH, 3))))
    params = parameters(whole, x)
    context = {"segment_ids": jnp.asarray(np.repeat([[0, 1]], [5, 7], axis=1).repeat(2, axis=0))}

    def outputs_and_gradients(model: Decoder) -> tuple[jax.Array, Any]:
        def loss(params: Any) -> tuple[jax.Array, jax.Array]:
            rngs = {"dropout": jax.random.key(3)}
            y = model.apply({"params": params}, x, dropout=True, rngs=rngs, **context)
            return jnp.sum(jnp.sin(y[:, -answers:])), y

        step = jax.jit(jax.grad(loss, has_aux=True)).lower(params).compile(QUICK_COMPILE)
        gradients, y = step(params)
        return y, gradients

    short = whole.clone(io=Features(3, 2, answers))
    (found, gradients), (expected, all_gradients) = map(outputs_and_gradients, (short, whole))
    assert found.shape == (2, answers, 2)
    np.testing.assert_allclose(found, expected[:, -answers:], atol=TOLERANCE)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(all_gradients))
    for one, other in zip(*map(jax.tree.leaves, (gradients, all_gradients)), strict=True):
        np.testing.assert_allclose(one, other, atol=TOLERANCE * largest)
