"""Attention diagnostics, against their formulas written out in numpy, and their pictures."""

import io
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from hyla_lm.attention.request import Request
from hyla_lm.diagnostics.attention import (
    BLUE,
    GAP,
    GREY,
    LayerDiagnostics,
    diagnose_layer,
    head_pictures,
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
    own = True if documents is None else documents[:, :, None] == documents[:, None]
    return np.tri(LENGTH, dtype=bool) & np.broadcast_to(own, (BATCH, LENGTH, LENGTH))


def scores(view: LayerView) -> np.ndarray:
    """BxTxSxH: q.k / sqrt(K)."""
    q, k = (np.asarray(x, np.float64) for x in (view.request.q_BxTxHxK, view.request.k_BxSxHxK))
    return np.einsum("bthk,bshk->btsh", q, k) / np.sqrt(q.shape[-1])


CASES = [("hyla", False), ("hyla_deep", True), ("hyla_softmax", True)]


@pytest.mark.parametrize(("attention", "has_documents"), CASES)
def test_figures_are_those_of_the_visible_pairs(attention: str, has_documents: bool) -> None:
    documents = DOCUMENTS if has_documents else None
    view, found = diagnosed(attention, documents)
    spec, seen, score = view.request.spec, visible(documents), scores(view)
    code_BxTxSxH = np.moveaxis(np.asarray(view.code_BxHxTxS, np.float64), 1, -1)
    np.testing.assert_array_equal(found.visible_TxS, seen[0])
    np.testing.assert_array_equal(found.code_HxTxS, view.code_BxHxTxS[0])
    figures = {name: float(value) for name, value in found.figures.items()}
    code_PxH = code_BxTxSxH[seen]
    eigenvalues = np.linalg.eigvalsh(np.cov(code_PxH.T, bias=True))
    expected = {
        "score_rms": np.sqrt((score[seen] ** 2).mean()),
        "score_max": np.abs(score[seen]).max(),
        "code_rank": eigenvalues.sum() ** 2 / (eigenvalues**2).sum(),
    }
    if spec.normalization.startswith("softmax"):
        exponential = np.where(seen[..., None], np.exp(score), 0)
        weight = exponential / exponential.sum(2, keepdims=True)
        surprise = -np.log(np.where(weight > 0, weight, 1))
        expected["entropy"] = (weight * surprise).sum(2).mean()
    units = [np.asarray(unit)[seen] for unit in view.value_units()]
    expected["dead_units"] = np.mean([(unit == 0).all(0) for unit in units])
    assert figures == pytest.approx(expected, **CLOSE)


def test_a_plain_value_is_dead_that_is_zero_at_every_key() -> None:
    view, _ = diagnosed("linear_rms_head_nonlinear_value", DOCUMENTS)
    v = -jnp.abs(view.request.v_BxSxHxU).at[..., :1].multiply(-1)
    assert dead_units(replace(view, request=replace(view.request, v_BxSxHxU=v))) == 0.75


@pytest.mark.parametrize(("batch", "ways", "expected"), [(32, 4, 8), (12, 1, 12), (64, 16, 16)])
def test_some_rows_are_equally_many_of_each_device(batch: int, ways: int, expected: int) -> None:
    rows = some_rows({"row": jnp.arange(batch)}, ways)["row"]
    of_device = rows // (batch // ways)
    assert rows.size == expected
    assert np.bincount(of_device, minlength=ways).tolist() == [expected // ways] * ways


def test_heads_are_side_by_side_red_above_zero_and_blue_below() -> None:
    visible = np.tril(np.ones((300, 300), bool))
    code = np.stack([visible * 1.0, visible * -2.0])
    code[:, 5, 2] = 0
    picture = np.asarray(Image.open(io.BytesIO(head_pictures(code, visible))))
    assert picture.shape == (300, 2 * 300 + GAP, 3)
    left, right = picture[:, :300], picture[:, 300 + GAP :]
    assert (picture[:, 300 : 300 + GAP] == 255).all() and (left[~visible] == 255).all()
    assert left[5, 3, 0] > left[5, 3, 1] and right[5, 3].tolist() == BLUE.tolist()
    assert left[5, 2].tolist() == right[5, 2].tolist() == GREY.tolist()
