"""What goes on inside attention on a few rows: figures, histograms and latent codes, by layer.

All of it is of visible pairs: a key is not after its query, and of the same document.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from hyla_lm.attention.scores import scaled_scores, visible_pairs
from hyla_lm.attention.softmax.reference import over_visible_keys
from hyla_lm.diagnostics.counts import Counts, counts
from hyla_lm.diagnostics.norms import by_layer
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers
from hyla_lm.parallel.mesh import REPLICATED, batch_ways
from hyla_lm.tasks.protocol import Batch, Objective
from hyla_lm.train_step import split_batch

ROWS, POSITIONS = 8, 256


class LayerLook(NamedTuple):
    """One attention layer; None is what has no meaning there. The code is that of one row.

    `figures` are scalars by the names in hyla_lm.logs.sinks.
    """

    figures: dict[str, jax.Array]
    code_values: Counts
    unit_values: Counts | None
    code_HxTxS: jax.Array
    visible_TxS: jax.Array
    mean_H: jax.Array
    covariance_HxH: jax.Array


class Look(NamedTuple):
    """Every attention layer, and the parameters of every layer."""

    layers: list[LayerLook]
    parameters: dict[str, Counts]


def make_look(task: Objective, model: Decoder, mesh: Mesh) -> Callable[[Any, Batch], Look]:
    """The compiled look at parameters and a global batch; all devices hold the result.

    At least ROWS rows are looked at, a few for each part of the mesh, and the first POSITIONS of a
    causal model, for which the rest does not matter.
    """
    config = replace(model.config, attention_implementation="auto")
    parts = mesh.shape["model"]

    def look(params: Any, batch: Batch) -> Look:
        inputs, segment_BxT = task.inputs(some_rows(batch, batch_ways(mesh)))
        if config.causal and inputs.shape[1] > POSITIONS:
            length = POSITIONS // parts * parts
            inputs = inputs[:, :length]
            segment_BxT = None if segment_BxT is None else segment_BxT[:, :length]
        layers = attention_layers(model.clone(config=config), params, inputs, segment_BxT)
        of_layers = by_layer(params, config.scan_layers)
        return Look(
            [look_at(layer) for layer in layers],
            {name: counts(leaves) for name, leaves in of_layers.items()},
        )

    return jax.jit(look, out_shardings=NamedSharding(mesh, REPLICATED))


def some_rows(batch: Batch, ways: int) -> Batch:
    """About ROWS rows, equally many of each of `ways` devices."""
    of_device = next(iter(batch.values())).shape[0] // ways
    divisors = [rows for rows in range(1, of_device + 1) if of_device % rows == 0]
    taken = next((rows for rows in divisors if rows * ways >= ROWS), of_device)
    return {name: value[0] for name, value in split_batch(batch, of_device // taken).items()}


def look_at(layer: LayerView) -> LayerLook:
    """What is seen of one layer."""
    request, code_BxHxTxS = layer.request, layer.code_BxHxTxS
    spec, (batch, heads, *pairs) = request.spec, code_BxHxTxS.shape
    visible = visible_pairs(
        request.q_position_T, request.k_position_S, request.segments, request.causal
    )
    visible_Bx1xTxS = jnp.broadcast_to(visible, (batch, 1, *pairs))
    count = jnp.sum(visible_Bx1xTxS)
    score_BxHxTxS = scaled_scores(request.q_BxTxHxK, request.k_BxSxHxK, request.bias)
    seen_BxHxTxS = jnp.where(visible_Bx1xTxS, score_BxHxTxS, 0)
    mean_H = jnp.sum(code_BxHxTxS, (0, 2, 3)) / count
    covariance_HxH = covariance(code_BxHxTxS, mean_H, visible_Bx1xTxS)
    figures = {
        "score_rms": jnp.sqrt(jnp.sum(jnp.square(seen_BxHxTxS)) / (count * heads)),
        "score_max": jnp.max(jnp.abs(seen_BxHxTxS)),
        "code_rank": participation_ratio(covariance_HxH),
    }
    if spec.normalizes_over_keys:
        figures["entropy"] = entropy(over_visible_keys(score_BxHxTxS, visible_Bx1xTxS))
    units, of_pairs = layer.value_units(), spec.value_network == "hypernetwork"
    shown = visible_Bx1xTxS[:, 0, :, :, None] if of_pairs else jnp.ones((), bool)
    if spec.activation == "relu":
        figures["dead_units"] = dead_share(units, shown)
    return LayerLook(
        figures,
        counts([code_BxHxTxS], visible_Bx1xTxS),
        counts(units, shown) if units else None,
        code_BxHxTxS[0],
        visible_Bx1xTxS[0, 0],
        mean_H,
        covariance_HxH,
    )


def covariance(code_BxHxTxS: jax.Array, mean_H: jax.Array, visible_Bx1xTxS: jax.Array) -> jax.Array:
    """The covariance of the code over heads, of all visible pairs."""
    centred = jnp.where(visible_Bx1xTxS, code_BxHxTxS - mean_H[:, None, None], 0)
    products = jnp.einsum("bhts,bgts->hg", centred, centred, precision="highest")
    return products / jnp.sum(visible_Bx1xTxS)


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

    Units of a value network are BxTxSxU and shown where a pair is visible; those of values alone,
    BxSxHxU, are shown to their own query at least.
    """
    axes = (0, 1, 2) if shown.ndim else (0, 1)
    is_dead = [~jnp.any(shown & (unit != 0), axis=axes) for unit in units]
    return jnp.mean(jnp.concatenate([dead.ravel() for dead in is_dead]))
