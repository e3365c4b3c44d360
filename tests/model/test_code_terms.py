"""Figures of latent codes are their definitions in numpy, and gradients reach queries and keys."""

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import VARIANTS, Request, latent_codes_of, make_request
from hyla_lm.model.inspection import (
    contrast,
    entropy_over_heads,
    head_entropy,
    mean_square,
    moments,
)
from tests.model.small_model import QUICK_COMPILE

BATCH, LENGTH, HEADS, SIZE = 2, 7, 3, 5
# Documents of odd lengths: rows start them at different places.
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 2, 2, 2, 2, 2, 3]])
# float32 sums of some hundred terms in another order.
CLOSE = dict(rtol=2e-5, atol=1e-6)


def quick(function: Any) -> Any:
    return jax.jit(function, compiler_options=QUICK_COMPILE)


def drawn(attention: str, causal: bool = True, queries: int = LENGTH) -> Request:
    rng = np.random.default_rng(3)
    q, k, v = (
        jnp.asarray(np.float32(rng.normal(size=(BATCH, LENGTH, HEADS, SIZE)))) for _ in "qkv"
    )
    segments = jnp.asarray(SEGMENTS) if causal else None
    offset = LENGTH - queries
    return make_request(
        q[:, offset:],
        k,
        v,
        replace(VARIANTS[attention], value_network="linear", activation="identity"),
        causal=causal,
        segment_ids=segments,
        q_offset=offset,
    )


def visible_codes(request: Request, causal: bool) -> list[np.ndarray]:
    """The code, H numbers in float64, of each visible pair, made with loops."""
    q, k = (np.asarray(x, np.float64) for x in (request.q_BxTxHxK, request.k_BxSxHxK))
    offset, softmax = LENGTH - q.shape[1], request.spec.normalization == "softmax"
    codes = []
    for row in range(BATCH):
        for t in range(q.shape[1]):
            seen = [
                s
                for s in range(LENGTH)
                if not causal or (s <= t + offset and SEGMENTS[row, s] == SEGMENTS[row, t + offset])
            ]
            score_SxH = np.einsum("hk,shk->sh", q[row, t], k[row, seen]) / math.sqrt(SIZE)
            if softmax:
                score_SxH = np.exp(score_SxH) / np.exp(score_SxH).sum(0)
            if request.spec.normalization == "rms_head":
                mean_square = np.mean(score_SxH**2, axis=1, keepdims=True)
                score_SxH = score_SxH / np.sqrt(mean_square + 1e-6)
            codes += list(score_SxH)
    return codes


@pytest.mark.parametrize(
    ("attention", "causal"),
    [("softmax", True), ("softmax", False), ("linear", True), ("hyla", True)],
)
def test_values_are_those_of_the_definition(attention: str, causal: bool) -> None:
    request = drawn(attention, causal, queries=LENGTH if causal else 3)
    codes = np.array(visible_codes(request, causal))
    found = quick(lambda request: (mean_square(request), entropy_over_heads(request)))(request)
    total, count = found[0]
    np.testing.assert_allclose(total, np.sum(codes**2), **CLOSE)
    assert count == codes.size
    share = codes**2 / np.sum(codes**2, axis=1, keepdims=True)
    total, count = found[1]
    np.testing.assert_allclose(total, -np.sum(share * np.log(share)), **CLOSE)
    assert count == len(codes)


def test_moments_are_means_over_the_keys_that_the_last_queries_see() -> None:
    whole, asking = drawn("hyla"), drawn("hyla", queries=2)
    found, again, code_BxHxTxS = quick(
        lambda a, b: (moments(a, 2), moments(b, 2), latent_codes_of(a)[:, :, -2:])
    )(whole, asking)
    np.testing.assert_allclose(found, again, **CLOSE)
    for row in range(BATCH):
        codes = np.moveaxis(np.asarray(code_BxHxTxS[row]), 0, -1).reshape(-1, HEADS)
        seen = codes[np.any(codes != 0, axis=1)]
        products = np.mean(seen[:, :, None] * seen[:, None], axis=0)
        np.testing.assert_allclose(found[row], [*seen.mean(0), *products.ravel()], **CLOSE)


def test_gradients_are_those_of_differences() -> None:
    """Of queries and of keys along a random direction; differences of float32 are good to 5e-3."""
    request, rng = drawn("softmax"), np.random.default_rng(5)
    q, k = request.q_BxTxHxK, request.k_BxSxHxK
    q_way, k_way = (jnp.asarray(np.float32(rng.normal(size=q.shape))) for _ in "qk")

    def values(step: jax.Array) -> jax.Array:
        by_q = replace(request, q_BxTxHxK=q + step * q_way)
        by_k = replace(request, k_BxSxHxK=k + step * k_way)
        terms = (mean_square, entropy_over_heads)
        return jnp.stack([term(moved)[0] for term in terms for moved in (by_q, by_k)])

    evaluate = quick(values)
    slope = quick(jax.jacrev(values))(jnp.float32(0))
    apart = (evaluate(jnp.float32(1e-2)) - evaluate(jnp.float32(-1e-2))) / 2e-2
    np.testing.assert_allclose(slope, apart, rtol=5e-3)
    assert np.abs(slope).min() > 0.01


def test_entropy_is_that_of_shares_of_squares_and_finite_at_zeros() -> None:
    one, even, none, small, odd = [1, 0, 0], [2, -2, 2], [0, 0, 0], [1e-17, 0, -1e-17], [3, 4, 0]
    code_1xHx1xS = jnp.array([one, even, none, small, odd], jnp.float32).T[None, :, None]
    share = 9 / 25
    want = [0, math.log(3), 0, math.log(2), -share * math.log(share) - 0.64 * math.log(0.64)]
    both = quick(lambda code: (head_entropy(code), jax.grad(lambda x: head_entropy(x).sum())(code)))
    found, slope = both(code_1xHx1xS)
    np.testing.assert_allclose(found[0, 0], want, atol=1e-6)
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(slope[0, :, 0, :3], 0, atol=1e-5)  # at its ends nothing pulls


def labelled(features: list[list[float]], labels: list[list[int]]) -> tuple[float, float]:
    pair = quick(contrast)(np.array(features, np.float32), np.array(labels), 0.5)
    return float(pair[0]), float(pair[1])


def test_contrast_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(5, 4))
    labels = [[1, 2], [2, 1], [1, 2], [1, 2], [3, 3]]
    unit = features - features.mean(0)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    want = 0.0
    for i in (0, 2, 3):
        others = [j for j in range(5) if j != i]
        log_z = np.log(sum(np.exp(unit[i] @ unit[j] / 0.5) for j in others))
        same = [unit[i] @ unit[j] / 0.5 - log_z for j in others if labels[j] == labels[i]]
        want -= float(np.mean(same))
    total, count = labelled(features.tolist(), labels)
    assert (total, count) == (pytest.approx(want, rel=1e-5), 3)


def test_contrast_is_lower_when_codes_of_a_function_agree() -> None:
    labels = [[0], [0], [1], [1]]
    agree = labelled([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], labels)
    differ = labelled([[1, 0], [0, 1], [1, 0.1], [0.1, 1]], labels)
    assert agree[0] < 0.2 * differ[0]
    assert labelled([[1, 0], [0, 1]], [[0], [1]]) == (0, 0)
