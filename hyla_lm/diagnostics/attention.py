"""Diagnostics of attention on a few rows: figures and pictures of each layer.

Figures are of visible pairs: a key is not after its query, and of the same document. Pictures are
of latent codes: heads side by side, queries down, keys across, masked pairs white.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from PIL import Image

from hyla_lm.attention.reference import over_visible_keys, scaled_scores, visible_pairs
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers
from hyla_lm.parallel.mesh import REPLICATED
from hyla_lm.parallel.sharding import batch_ways
from hyla_lm.tasks.protocol import Batch, Objective
from hyla_lm.train_step import split_batch

ROWS, POSITIONS = 8, 256
SMALLEST = 256  # pixels of a side, below which a pair becomes a square of several
GAP = 4
WHITE = 255.0
GREY, RED, BLUE = (np.array(c) for c in ((224.0, 224, 224), (196.0, 30, 30), (30.0, 70, 196)))


class LayerDiagnostics(NamedTuple):
    """One attention layer; the code is that of one row.

    `figures` are scalars by their names in docs/curves.md, of which a layer has those that mean
    something there.
    """

    figures: dict[str, jax.Array]
    code_HxTxS: jax.Array
    visible_TxS: jax.Array


def make_diagnostics(
    task: Objective, model: Decoder, mesh: Mesh
) -> Callable[[Any, Batch], list[LayerDiagnostics]]:
    """The compiled diagnostics of parameters on a global batch; all devices hold the result.

    They take at least ROWS rows, a few for each part of the mesh, and the first POSITIONS of a
    causal model, for which the rest does not matter.
    """
    config = replace(model.config, attention_implementation="auto")
    parts = mesh.shape["model"]

    def diagnose(params: Any, batch: Batch) -> list[LayerDiagnostics]:
        inputs, segment_BxT = task.inputs(some_rows(batch, batch_ways(mesh)))
        if config.causal and inputs.shape[1] > POSITIONS:
            length = POSITIONS // parts * parts
            inputs = inputs[:, :length]
            segment_BxT = None if segment_BxT is None else segment_BxT[:, :length]
        layers = attention_layers(model.clone(config=config), params, inputs, segment_BxT)
        return [diagnose_layer(layer) for layer in layers]

    return jax.jit(diagnose, out_shardings=NamedSharding(mesh, REPLICATED))


def some_rows(batch: Batch, ways: int) -> Batch:
    """About ROWS rows, equally many of each of `ways` devices."""
    of_device = next(iter(batch.values())).shape[0] // ways
    divisors = [rows for rows in range(1, of_device + 1) if of_device % rows == 0]
    taken = next((rows for rows in divisors if rows * ways >= ROWS), of_device)
    return {name: value[0] for name, value in split_batch(batch, of_device // taken).items()}


def diagnose_layer(layer: LayerView) -> LayerDiagnostics:
    """The diagnostics of one layer."""
    request, code_BxHxTxS = layer.request, layer.code_BxHxTxS
    spec, (batch, heads, *pairs) = request.spec, code_BxHxTxS.shape
    visible = visible_pairs(
        request.q_position_T, request.k_position_S, request.segments, request.causal
    )
    visible_Bx1xTxS = jnp.broadcast_to(visible, (batch, 1, *pairs))
    count = jnp.sum(visible_Bx1xTxS)
    score_BxHxTxS = scaled_scores(request.q_BxTxHxK, request.k_BxSxHxK, request.bias)
    visible_score_BxHxTxS = jnp.where(visible_Bx1xTxS, score_BxHxTxS, 0)
    figures = {
        "score_rms": jnp.sqrt(jnp.sum(jnp.square(visible_score_BxHxTxS)) / (count * heads)),
        "score_max": jnp.max(jnp.abs(visible_score_BxHxTxS)),
        "code_rank": participation_ratio(covariance(code_BxHxTxS, visible_Bx1xTxS)),
    }
    if spec.normalizes_over_keys:
        figures["entropy"] = entropy(over_visible_keys(score_BxHxTxS, visible_Bx1xTxS))
    if spec.activation == "relu":
        of_pairs = spec.value_network == "hypernetwork"
        shown = visible_Bx1xTxS[:, 0, :, :, None] if of_pairs else jnp.ones((), bool)
        figures["dead_units"] = dead_share(layer.value_units(), shown)
    return LayerDiagnostics(figures, code_BxHxTxS[0], visible_Bx1xTxS[0, 0])


def covariance(code_BxHxTxS: jax.Array, visible_Bx1xTxS: jax.Array) -> jax.Array:
    """The covariance of the code over heads, of all visible pairs; hidden ones have a code of 0."""
    count = jnp.sum(visible_Bx1xTxS)
    mean_H = jnp.sum(code_BxHxTxS, (0, 2, 3)) / count
    centred = jnp.where(visible_Bx1xTxS, code_BxHxTxS - mean_H[:, None, None], 0)
    return jnp.einsum("bhts,bgts->hg", centred, centred, precision="highest") / count


def participation_ratio(covariance_HxH: jax.Array) -> jax.Array:
    """(sum of eigenvalues)^2 / sum of their squares: from 1 on a line to H; 0 without variance."""
    squares = jnp.sum(jnp.square(covariance_HxH))
    return jnp.where(squares > 0, jnp.square(jnp.trace(covariance_HxH)) / squares, 0)


def entropy(weight_BxHxTxS: jax.Array) -> jax.Array:
    """The mean over queries and heads of the entropy over keys, in nats."""
    surprise = -jnp.log(jnp.where(weight_BxHxTxS > 0, weight_BxHxTxS, 1))
    return jnp.mean(jnp.sum(weight_BxHxTxS * surprise, axis=-1))


def dead_share(units: list[jax.Array], shown: jax.Array) -> jax.Array:
    """The share of units, over all hidden layers, that are zero for every visible pair.

    Units of a value network are BxTxSxU and shown where a pair is visible; those of plain values,
    BxSxHxU, are shown to their own query at least.
    """
    axes = (0, 1, 2) if shown.ndim else (0, 1)
    is_dead = [~jnp.any(shown & (unit != 0), axis=axes) for unit in units]
    return jnp.mean(jnp.concatenate([dead.ravel() for dead in is_dead]))


def figures(layers: Sequence[LayerDiagnostics]) -> dict[str, float]:
    """The scalars of every layer by their tag."""
    return {
        f"attention/{name}/layer_{number}": float(value)
        for number, layer in enumerate(layers)
        for name, value in layer.figures.items()
    }


def pictures(layers: Sequence[LayerDiagnostics]) -> dict[str, bytes]:
    """The picture of every layer by its tag; the diagnostics are on the host."""
    return {
        f"attention/head_pictures/layer_{number}": head_pictures(
            np.asarray(layer.code_HxTxS), np.asarray(layer.visible_TxS)
        )
        for number, layer in enumerate(layers)
    }


def head_pictures(code_HxTxS: np.ndarray, visible_TxS: np.ndarray) -> bytes:
    """A PNG of all heads side by side: red is positive, blue negative, light grey zero.

    Full colour is the magnitude that 1 % of the visible entries exceed.
    """
    magnitudes = np.abs(code_HxTxS[:, visible_TxS])
    share_HxTxSx1 = np.clip(code_HxTxS / (np.quantile(magnitudes, 0.99) or 1), -1, 1)[..., None]
    end = np.where(share_HxTxSx1 > 0, RED, BLUE)
    colour = GREY + np.abs(share_HxTxSx1) * (end - GREY)
    panels = np.where(visible_TxS[None, :, :, None], colour, WHITE)
    scale = max(1, SMALLEST // max(visible_TxS.shape))
    gap = np.full((visible_TxS.shape[0], -(-GAP // scale), 3), WHITE)
    beside = [part for panel in panels for part in (gap, panel)][1:]
    pixels = np.rint(np.concatenate(beside, axis=1)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.repeat(scale, axis=0).repeat(scale, axis=1)).save(file, "PNG")
    return file.getvalue()
