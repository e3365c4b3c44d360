"""A look inside attention and at the parameters, written for people to see."""

from collections.abc import Iterator

import jax
import numpy as np

from hyla_lm.diagnostics.attention import LayerLook, Look
from hyla_lm.diagnostics.counts import Counts
from hyla_lm.diagnostics.pictures import code_picture, head_pictures
from hyla_lm.logs.sinks import Histogram
from hyla_lm.parallel import multihost
from hyla_lm.run.run import Run
from hyla_lm.run.store import RunStore
from hyla_lm.train_step import TrainState

ATTENTION = "attention"


def look_inside(run: Run, step: int, state: TrainState) -> None:
    """Writes figures, histograms and pictures of the first batch of the first evaluation set."""
    run.log.flush()
    with run.costs.measured("details_seconds"):
        batches = next(iter(run.program.task.evaluation_sets(run.shard, False).values()))
        found = run.look(state.params, run.program.place(next(iter(batches))))
        look: Look = jax.device_get(found)
        if multihost.is_lead():
            _write_histograms(run.store, step, look)
            _write_pictures(run.store, step, look)
    run.store.write(step, figures(look) | run.costs.take())
    run.log.restart_clock()


def figures(look: Look) -> dict[str, float]:
    """The scalars of every layer by their tag."""
    return {
        f"{ATTENTION}/{name}/layer_{number}": float(value)
        for number, layer in enumerate(look.layers)
        for name, value in layer.figures.items()
    }


def _write_histograms(store: RunStore, step: int, look: Look) -> None:
    for name, counted in look.parameters.items():
        store.show(step, {f"optim/parameter_values/{name}": histogram(counted)})
    for number, layer in enumerate(look.layers):
        for name, counted in _counts(layer):
            store.show(step, {f"{ATTENTION}/{name}/layer_{number}": histogram(counted)})


def _counts(layer: LayerLook) -> Iterator[tuple[str, Counts]]:
    yield "code_values", layer.code_values
    if layer.unit_values is not None:
        yield "unit_values", layer.unit_values


def histogram(counted: Counts) -> Histogram:
    """The histogram that sinks take."""
    low, high = float(counted.low), float(counted.high)
    edge_N1 = np.linspace(low, high if high > low else low + 1, len(counted.count_N) + 1)
    return Histogram(
        np.asarray(counted.count_N), edge_N1, float(counted.sum), float(counted.sum_squares)
    )


def _write_pictures(store: RunStore, step: int, look: Look) -> None:
    for number, layer in enumerate(look.layers):
        code, visible = np.asarray(layer.code_HxTxS), np.asarray(layer.visible_TxS)
        mean_H, covariance_HxH = np.asarray(layer.mean_H), np.asarray(layer.covariance_HxH)
        whole = code_picture(code, visible, mean_H, covariance_HxH)
        store.show(step, {f"{ATTENTION}/code_picture/layer_{number}": whole})
        heads = head_pictures(code, visible)
        store.show(step, {f"{ATTENTION}/head_pictures/layer_{number}": heads})
