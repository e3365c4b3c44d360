"""Pictures of latent codes: their size, their colours, and that they do not flip."""

import io

import numpy as np
import pytest
from PIL import Image

from hyla_lm.diagnostics.pictures import (
    BLUE,
    GAP,
    GREY,
    code_picture,
    head_pictures,
    principal_axes,
)

LENGTH = 128
VISIBLE = np.tril(np.ones((LENGTH, LENGTH), bool))


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def codes(heads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A code, its mean and its covariance over visible pairs."""
    code = np.random.default_rng(0).normal(size=(heads, LENGTH, LENGTH)) * VISIBLE
    code *= np.arange(heads, 0, -1)[:, None, None]
    seen = code[:, VISIBLE]
    return code, seen.mean(1), np.cov(seen, bias=True).reshape(heads, heads)


@pytest.mark.parametrize("heads", [1, 2, 5])
def test_a_pair_has_the_colour_of_its_place_on_the_principal_axes(heads: int) -> None:
    code, mean, covariance = codes(heads)
    picture = pixels(code_picture(code, VISIBLE, mean, covariance))
    assert picture.shape == (2 * LENGTH, 2 * LENGTH, 3), "a pair is a square of 2 x 2 pixels"
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
    _, _, covariance = codes(4)
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


def test_a_code_without_variance_is_grey() -> None:
    flat = np.ones((3, LENGTH, LENGTH))
    picture = pixels(code_picture(flat, VISIBLE, np.ones(3), np.zeros((3, 3))))
    assert np.isin(picture[::2, ::2][VISIBLE], (127, 128)).all()
