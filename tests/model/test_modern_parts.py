"""RMSNorm, QK-norm, grouped heads, gates and soft caps against formulas, and in every form."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import attention_layers
from hyla_lm.muon import axes_of
from hyla_lm.optim import decay_mask
from tests.model import plain_decoder
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
from tests.model.test_model_forms import (
    assert_decoding_is_the_full_forward_pass,
    assert_trees_close,
)

ALL: dict[str, Any] = dict(norm="rms", qk_norm=True, gated_attention=True, logit_soft_cap=0.4)
GROUPED: dict[str, Any] = dict(attention="softmax", num_heads=4, num_kv_heads=2)


def with_gradients(logits_of: Callable[[Any], jax.Array], params: Any) -> tuple[jax.Array, Any]:
    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        logits = logits_of(params)
        return jnp.sum(jnp.sin(3 * logits)), logits

    step = jax.jit(jax.grad(loss, has_aux=True), compiler_options=QUICK_COMPILE)
    gradients, logits = step(params)
    return logits, gradients


@pytest.mark.parametrize(
    "fields",
    [
        {**GROUPED, "num_kv_heads": 1, "qk_norm": True, "positions": "relative"},
        {**GROUPED, **ALL},
        {"attention": "linear", **ALL},
        {"attention": "hyla", **ALL},
    ],
    ids=str,
)
def test_logits_and_gradients_are_those_of_the_formula(fields: dict[str, Any]) -> None:
    config = small(num_layers=1, scale_tied_logits=False, **fields)
    model, ids = Decoder(config, Tokens(VOCABULARY)), tokens()
    params = parameters(model, ids)
    found, gradients = with_gradients(lambda p: model.apply({"params": p}, ids), params)
    expected, exact = with_gradients(lambda p: plain_decoder.logits(config, p, ids), params)
    assert expected.std() > 0.1, "the model says too little to tell right from wrong"
    np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert_trees_close(gradients, exact)


def test_normalised_queries_and_keys_bound_the_scores() -> None:
    """q.k / sqrt(K) is at most sqrt(K) however large the projections; the code of HYLA follows."""

    def largest(**fields: Any) -> tuple[float, np.ndarray]:
        model = Decoder(small(attention="hyla", num_layers=1, **fields), Tokens(VOCABULARY))
        params = jax.tree.map(lambda leaf: 50 * leaf, parameters(model, tokens()))
        for block in params["blocks"].values() if fields else ():
            for name in ("query_norm", "key_norm"):
                block["attention"][name]["scale"] = jnp.ones(model.config.head_dim)
        view = attention_layers(model, params, tokens())[0]
        q, k = view.request.q_BxTxHxK, view.request.k_BxSxHxK
        scores = jnp.einsum("bthk,bshk->bhts", q, k) / np.sqrt(model.config.head_dim)
        return float(np.abs(scores).max()), np.asarray(view.code_BxHxTxS)

    bound = np.sqrt(small().head_dim)
    score, code = largest(qk_norm=True)
    assert 0.5 * bound < score <= bound * (1 + TOLERANCE)
    assert largest()[0] > 100 * bound
    seen = np.tri(LENGTH, dtype=bool)
    np.testing.assert_allclose(np.square(code).mean(1)[:, seen], 1, rtol=0.01)


def test_decoding_against_the_cache_is_the_full_forward_pass() -> None:
    config = small(**GROUPED, **ALL, scan_layers=True, feedforward="moe")
    model = Decoder(config, Tokens(VOCABULARY), cache_length=LENGTH + 3)
    assert_decoding_is_the_full_forward_pass(model, [5] + [1] * 7)


def test_logits_of_a_head_of_its_own_are_capped() -> None:
    plain = Decoder(small(num_layers=1, tie_embeddings=False), Tokens(VOCABULARY))
    capped = plain.clone(config=replace(plain.config, logit_soft_cap=0.4))
    params, ids = parameters(plain, tokens()), tokens()
    logits, found = (jax.jit(m.apply)({"params": params}, ids) for m in (plain, capped))
    assert np.abs(logits).max() > 0.8
    np.testing.assert_allclose(found, 0.4 * np.tanh(logits / 0.4), atol=TOLERANCE)


def test_the_cache_holds_the_heads_of_keys_and_values_alone() -> None:
    model = Decoder(small(**GROUPED, value_dim=6), Tokens(VOCABULARY), cache_length=15)
    init = partial(model.init, cache_index=jnp.asarray(0))
    variables = jax.eval_shape(init, jax.random.key(0), tokens())
    cache = variables["cache"]["blocks"]["block_1"]["attention"]
    assert cache["cached_key"].shape == (2, 15, 2, 4)
    assert cache["cached_value"].shape == (2, 15, 2, 6)
    attention = variables["params"]["blocks"]["block_1"]["attention"]
    kernels = {name: part["kernel"].shape for name, part in attention.items()}
    assert kernels == {
        "query": (16, 4, 4),
        "key": (16, 2, 4),
        "value": (16, 2, 6),
        "out": (4, 6, 16),
    }


def test_codes_of_grouped_heads_are_told_apart_by_their_queries() -> None:
    model = Decoder(small(**GROUPED), Tokens(VOCABULARY))
    views = attention_layers(model, parameters(model, tokens()), tokens())
    for view in views:
        assert view.code_BxHxTxS.shape == (2, 4, LENGTH, LENGTH)
        assert view.contributions().shape == (2, LENGTH, LENGTH)
        k = view.request.k_BxSxHxK
        np.testing.assert_array_equal(k[:, :, 0::2], k[:, :, 1::2])
        assert not np.allclose(k[:, :, 0], k[:, :, 2])
        assert not np.allclose(view.code_BxHxTxS[:, 0], view.code_BxHxTxS[:, 1])


def test_every_parameter_is_trained_as_its_like() -> None:
    config = small(num_layers=1, **GROUPED, **ALL)
    blocks = shapes(Decoder(config, Tokens(VOCABULARY)), tokens())["blocks"]
    attention = blocks["block_0"]["attention"]
    kernels, scales = {"query", "key", "value", "gate", "out"}, {"query_norm", "key_norm"}
    assert set(attention) == kernels | scales
    for name in kernels:
        assert axes_of(f"blocks/block_0/attention/{name}/kernel") is not None
    assert axes_of("blocks/block_0/attention/gate/kernel") == ((-3,), (-2, -1))
    for name in scales:
        assert axes_of(f"blocks/block_0/attention/{name}/scale") is None
        assert decay_mask(attention)[name] == {"scale": False}
    assert decay_mask(attention)["gate"] == {"kernel": True}
