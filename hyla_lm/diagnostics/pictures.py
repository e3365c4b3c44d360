"""Latent codes as pictures: queries down, keys across, masked pairs white."""

import io

import numpy as np
from PIL import Image

SMALLEST = 256  # pixels of a side, below which a pair becomes a square of several
GAP = 4
WHITE = 255.0
GREY, RED, BLUE = (np.array(c) for c in ((224.0, 224, 224), (196.0, 30, 30), (30.0, 70, 196)))


def code_picture(
    code_HxTxS: np.ndarray, visible_TxS: np.ndarray, mean_H: np.ndarray, covariance_HxH: np.ndarray
) -> bytes:
    """A PNG whose red, green and blue are the first three principal components over heads.

    Grey is the mean code; full colour is twice the deviation of the first component, whose scale
    all three have.
    """
    axes_Hx3, deviation = principal_axes(covariance_HxH)
    place_TxSx3 = np.einsum("hts,hc->tsc", code_HxTxS - mean_H[:, None, None], axes_Hx3)
    share_TxSx3 = np.clip(place_TxSx3 / (2 * deviation or 1), -1, 1)
    return png(np.where(visible_TxS[..., None], (1 + share_TxSx3) * WHITE / 2, WHITE))


def principal_axes(covariance_HxH: np.ndarray) -> tuple[np.ndarray, float]:
    """The first three principal axes, zeros where there are fewer, and the first's deviation.

    The largest entry of an axis is positive, so that pictures of one run have the same colours.
    """
    variance_H, axes_HxH = np.linalg.eigh(covariance_HxH.astype(np.float64))
    axes_Hx3 = np.zeros((len(variance_H), 3))
    found = axes_HxH[:, ::-1][:, :3]
    largest = np.take_along_axis(found, np.abs(found).argmax(0)[None], axis=0)
    axes_Hx3[:, : found.shape[1]] = found * np.where(largest < 0, -1, 1)
    return axes_Hx3, float(np.sqrt(max(variance_H[-1], 0)))


def head_pictures(code_HxTxS: np.ndarray, visible_TxS: np.ndarray) -> bytes:
    """A PNG of all heads side by side: red is positive, blue negative, light grey zero.

    Full colour is the magnitude that 1 % of the visible entries exceed.
    """
    seen = np.abs(code_HxTxS[:, visible_TxS])
    share_HxTxSx1 = np.clip(code_HxTxS / (np.quantile(seen, 0.99) or 1), -1, 1)[..., None]
    end = np.where(share_HxTxSx1 > 0, RED, BLUE)
    colour = GREY + np.abs(share_HxTxSx1) * (end - GREY)
    panels = np.where(visible_TxS[None, :, :, None], colour, WHITE)
    scale = scale_of(visible_TxS)
    gap = np.full((visible_TxS.shape[0], -(-GAP // scale), 3), WHITE)
    beside = [part for panel in panels for part in (gap, panel)][1:]
    return png(np.concatenate(beside, axis=1), scale)


def scale_of(visible_TxS: np.ndarray) -> int:
    """The pixels of a pair's side."""
    return max(1, SMALLEST // max(visible_TxS.shape))


def png(colour_TxSx3: np.ndarray, scale: int | None = None) -> bytes:
    """The PNG of colours from 0 to 255, each pair a square of `scale` pixels."""
    side = scale or scale_of(colour_TxSx3[..., 0])
    pixels = np.rint(colour_TxSx3).astype(np.uint8).repeat(side, axis=0).repeat(side, axis=1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()
