"""Attention diagnostics, against their formulas written out in numpy, and their pictures."""

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from hyla_lm.attention.attend import Request
from hyla_lm.diagnostics.attention import (
    BINS,
    BLUE,
    GAP,
    GREY,
    LayerDiagnostics,
    code_picture,
    counts,
    diagnose_layer,
    head_pictures,
    participation_ratio,
    principal_axes,
    some_rows,
)
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers
from tests.model.small_model import VOCABULARY, parameters, small, tokens

BATCH, LENGTH, HEADS = 2, 7, 3
DOCUMENTS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 2, 2, 2, 2, 3, 3]])
CLOSE = dict(rel=1e-4, abs=1e-6)


def diagnosed(attention: str, documents: np.ndarray | None) -> tuple[LayerView, LayerDiagnostics]:
    """The request of a layer, and its diagnostics."""
    config = small(
        num_layers=1, num_heads=HEADS, attention=attention, attention_implementation="reference"
    )
    model = Decoder(config, Tokens(VOCABULARY))
    inputs = tokens(BATCH, LENGTH)
    params = parameters(model, inputs)
    segments = None if documents is None else jnp.asarray(documents)

    @jax.jit
    def diagnose(params: Any) -> tuple[jax.Array, Request, LayerDiagnostics]:
        (view,) = attention_layers(model, params, inputs, segments)
        return view.code_BxHxTxS, view.request, diagnose_layer(view)

    code, request, found = diagnose(params)
    return LayerView(code, request), jax.device_get(found)


def dead_units(view: LayerView) -> float:
    share = jax.jit(lambda *fields: diagnose_layer(LayerView(*fields)).figures["dead_units"])
    return float(share(view.code_BxHxTxS, view.request))


def visible(documents: np.ndarray | None) -> np.ndarray:
    """BxTxS: not after the query, and of its document."""
    seen = np.zeros((BATCH, LENGTH, LENGTH), bool)
    for b in range(BATCH):
        for t in range(LENGTH):
            for s in range(t + 1):
                seen[b, t, s] = documents is None or documents[b, t] == documents[b, s]
    return seen


def scores(view: LayerView) -> np.ndarray:
    """BxTxSxH: q.k / sqrt(K)."""
    q, k = (np.asarray(x, np.float64) for x in (view.request.q_BxTxHxK, view.request.k_BxSxHxK))
    return np.einsum("bthk,bshk->btsh", q, k) / np.sqrt(q.shape[-1])


def code(score_BxTxSxH: np.ndarray, seen: np.ndarray, normalization: str) -> np.ndarray:
    masked = np.where(seen[..., None], score_BxTxSxH, 0)
    if normalization.startswith("softmax"):
        exponential = np.where(seen[..., None], np.exp(score_BxTxSxH), 0)
        masked = exponential / exponential.sum(2, keepdims=True)
    if normalization.endswith("rms_head"):
        masked = masked / np.sqrt((masked**2).mean(-1, keepdims=True) + 1e-6)
    return masked


def units_of(view: LayerView, code_BxTxSxH: np.ndarray) -> list[np.ndarray]:
    """The hidden layers of the value network, BxTxSxU each."""
    v = np.asarray(view.request.v_BxSxHxU, np.float64)
    first = np.maximum(np.einsum("btsh,bshu->btsu", code_BxTxSxH, v), 0)
    if view.request.deep_kernel_HxUxU is None:
        return [first]
    w = np.asarray(view.request.deep_kernel_HxUxU, np.float64)
    return [first, np.maximum(np.einsum("btsh,btsu,huw->btsw", code_BxTxSxH, first, w), 0)]


CASES = [("softmax", True), ("linear", True), ("hyla", True), ("hyla", False), ("hyla_deep", True)]


@pytest.mark.parametrize(("attention", "has_documents"), [*CASES, ("hyla_softmax", True)])
def test_figures_are_those_of_the_visible_pairs(attention: str, has_documents: bool) -> None:
    documents = DOCUMENTS if has_documents else None
    view, found = diagnosed(attention, documents)
    spec, seen, score = view.request.spec, visible(documents), scores(view)
    code_BxTxSxH = code(score, seen, spec.normalization)
    np.testing.assert_array_equal(found.visible_TxS, seen[0])
    np.testing.assert_allclose(
        found.code_HxTxS, np.moveaxis(code_BxTxSxH[0], -1, 0), rtol=1e-4, atol=1e-5
    )
    figures = {name: float(value) for name, value in found.figures.items()}
    code_PxH = code_BxTxSxH[seen]
    eigenvalues = np.linalg.eigvalsh(np.cov(code_PxH.T, bias=True))
    expected = {
        "score_rms": np.sqrt((score[seen] ** 2).mean()),
        "score_max": np.abs(score[seen]).max(),
        "code_rank": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
    }
    if spec.normalization.startswith("softmax"):
        weight = code(score, seen, "softmax")
        surprise = -np.log(np.where(weight > 0, weight, 1))
        expected["entropy"] = (weight * surprise).sum(2).mean()
    if spec.value_network == "hypernetwork":
        units = [unit[seen] for unit in units_of(view, code_BxTxSxH)]
        expected["dead_units"] = np.mean([(unit == 0).all(0) for unit in units])
        assert found.unit_values is not None
        assert found.unit_values.count_N.sum() == sum(unit.size for unit in units)
    else:
        assert found.unit_values is None
    assert figures == pytest.approx(expected, **CLOSE)
    assert found.code_values.count_N.sum() == code_PxH.size
    edges = np.linspace(code_PxH.min(), code_PxH.max(), BINS + 1)
    assert np.abs(found.code_values.count_N - np.histogram(code_PxH, edges)[0]).sum() <= 4
    assert found.code_values.sum == pytest.approx(code_PxH.sum(), rel=1e-3, abs=1e-3)
    assert found.code_values.sum_squares == pytest.approx((code_PxH**2).sum(), rel=1e-3)


@pytest.mark.parametrize(
    ("attention", "units", "expected"),
    [
        ("hyla", lambda v: v.at[..., 1:].set(0), 0.75),
        ("linear_rms_head_nonlinear_value", lambda v: -jnp.abs(v).at[..., :1].multiply(-1), 0.75),
    ],
)
def test_a_unit_is_dead_that_is_zero_for_every_visible_pair(
    attention: str, units: Callable[[Any], Any], expected: float
) -> None:
    view, _ = diagnosed(attention, DOCUMENTS)
    request = replace(view.request, v_BxSxHxU=units(view.request.v_BxSxHxU))
    assert dead_units(replace(view, request=request)) == expected


def test_a_unit_that_only_masked_pairs_would_wake_is_dead() -> None:
    """A value at the last key alone, which only the last query sees, through a code of 0 there."""
    view, _ = diagnosed("hyla", None)
    seen_last = view.code_BxHxTxS.at[:, :, -1, -1].set(0)
    v = jnp.zeros_like(view.request.v_BxSxHxU).at[:, -1].set(1)
    blind = replace(view, code_BxHxTxS=seen_last, request=replace(view.request, v_BxSxHxU=v))
    assert dead_units(blind) == 1


def test_the_participation_ratio_counts_directions() -> None:
    assert participation_ratio(jnp.diag(jnp.array([2.0, 2, 2, 0]))) == pytest.approx(3)
    assert participation_ratio(jnp.diag(jnp.array([5.0, 0, 0, 0]))) == pytest.approx(1)
    assert participation_ratio(jnp.zeros((4, 4))) == 0


def test_counts_of_equal_values_are_in_one_bin_and_of_nothing_hidden() -> None:
    values = np.float32([1, 1, 9])
    found = jax.jit(counts)([values], np.array([True, True, False]))
    assert found.count_N[0] == found.count_N.sum() == 2
    assert (found.low, found.high, found.sum, found.sum_squares) == (1, 1, 2, 2)
    both = jax.jit(counts)([np.float32([0, 1]), np.float32([[4]])])
    assert (both.low, both.high) == (0, 4)
    assert np.flatnonzero(both.count_N).tolist() == [0, BINS // 4, BINS - 1]


@pytest.mark.parametrize(
    ("batch", "ways", "expected"), [(32, 1, 8), (32, 4, 8), (12, 1, 12), (4, 2, 4), (64, 16, 16)]
)
def test_some_rows_are_equally_many_of_each_device(batch: int, ways: int, expected: int) -> None:
    rows = some_rows({"row": jnp.arange(batch)}, ways)["row"]
    of_device = rows // (batch // ways)
    assert rows.size == expected
    assert np.bincount(of_device, minlength=ways).tolist() == [expected // ways] * ways


PAIRS = 128
VISIBLE = np.tril(np.ones((PAIRS, PAIRS), bool))


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def random_codes(heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A code, its mean and its covariance over visible pairs."""
    code = np.random.default_rng(0).normal(size=(heads, PAIRS, PAIRS)) * VISIBLE
    code *= np.arange(heads, 0, -1)[:, None, None]
    seen = code[:, VISIBLE]
    return code, seen.mean(1), np.cov(seen, bias=True).reshape(heads, heads)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_pair_has_the_colour_of_its_place_on_the_principal_axes(heads: int) -> None:
    code, mean, covariance = random_codes(heads)
    picture = pixels(code_picture(code, VISIBLE, mean, covariance))
    assert picture.shape == (2 * PAIRS, 2 * PAIRS, 3), "a pair is a square of 2 x 2 pixels"
    assert (picture[::2, ::2] == picture[1::2, 1::2]).all()
    small = picture[::2, ::2]
    assert (small[~VISIBLE] == 255).all()
    _, _, rows = np.linalg.svd((code[:, VISIBLE] - mean[:, None]).T, full_matrices=False)
    axis = rows[0] * np.sign(rows[0][np.abs(rows[0]).argmax()])
    place = np.einsum("hts,h->ts", code - mean[:, None, None], axis)
    scale = 2 * np.sqrt(np.linalg.eigvalsh(covariance)[-1])
    red = 127.5 + 127.5 * np.clip(place / scale, -1, 1)
    assert np.abs(small[..., 0] - red)[VISIBLE].max() <= 1
    if heads < 3:
        assert np.isin(small[..., 2][VISIBLE], (127, 128)).all(), "there is no third component"


def test_a_picture_does_not_flip_when_the_solver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, covariance = random_codes(4)
    axes, deviation = principal_axes(covariance)
    solve = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda m: (solve(m)[0], -solve(m)[1]))
    flipped, _ = principal_axes(covariance)
    np.testing.assert_array_equal(flipped, axes)
    assert deviation == pytest.approx(np.sqrt(np.linalg.eigvalsh(covariance)[-1]))


def test_heads_are_side_by_side_red_above_zero_and_blue_below() -> None:
    visible = np.tril(np.ones((300, 300), bool))
    code = np.stack([visible * 1.0, visible * -2.0])
    code[:, 5, 2] = 0
    picture = pixels(head_pictures(code, visible))
    assert picture.shape == (300, 2 * 300 + GAP, 3)
    left, right = picture[:, :300], picture[:, 300 + GAP :]
    assert (picture[:, 300 : 300 + GAP] == 255).all() and (left[~visible] == 255).all()
    assert left[5, 3, 0] > left[5, 3, 1] and right[5, 3].tolist() == BLUE.tolist()
    assert left[5, 2].tolist() == right[5, 2].tolist() == GREY.tolist()
