"""Trains a model for a few steps and measures its activations after each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.width import rate_of
from hyla_lm.optim import OptimizerConfig, make_optimizer
from hyla_lm.run.program import init_params
from hyla_lm.tasks.protocol import Batch, Objective
from hyla_lm.tools.coordcheck.activations import activations
from hyla_lm.train_step import init_state, make_train_step

Sizes = dict[str, np.ndarray]


@dataclass(frozen=True)
class Training:
    """What all models of a check are trained on: a batch for each step, and how."""

    objective: Objective
    batches: Sequence[Batch]
    optimizer: OptimizerConfig
    seeds: Sequence[int]


@dataclass(frozen=True)
class Measured:
    """Mean absolute values of one model, over the seeds, by quantity and for steps from 0 on."""

    size: Sizes
    change: Sizes
    loss: np.ndarray


def measure(config: ModelConfig, training: Training) -> Measured:
    """Trains the model from each seed at a constant learning rate, and measures the first batch."""
    model = Decoder(config, training.objective.io)
    schedule = optax.constant_schedule(training.optimizer.learning_rate)
    optimizer = make_optimizer(training.optimizer, schedule, rate_of=rate_of(config))
    init = jax.jit(partial(init_state, partial(init_params, model), optimizer))
    step = jax.jit(make_train_step(training.objective.loss(model), optimizer, 1, 0))
    act, look = jax.jit(partial(activations, model)), jax.jit(partial(_look, model))
    inputs = inputs_of(training.batches[0])

    def of_seed(seed: int) -> tuple[list[Any], list[float]]:
        state = init(seed)
        start, losses = state.params, []
        then = act(start, inputs)
        seen = [look(start, then, inputs)]
        for batch in training.batches:
            state, output = step(state, batch)
            losses.append(float(output.objective[0] / output.objective[1]))
            seen.append(look(state.params, then, inputs))
        return jax.device_get(seen), losses

    runs = [of_seed(seed) for seed in training.seeds]
    size, change = (
        {
            name: _mean([[step[part][name] for step in seen] for seen, _ in runs])
            for name in runs[0][0][0][part]
        }
        for part in (0, 1)
    )
    return Measured(size, change, np.mean([losses for _, losses in runs], axis=0))


def inputs_of(batch: Batch) -> jax.Array:
    """A batch's tokens or features; the rows are looked at as one document each."""
    return batch["features"] if "features" in batch else batch["tokens"][:, :-1]


def _look(
    model: Decoder, params: Any, then: Any, inputs: jax.Array
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """How large each activation is, and how far from `then`, that of the parameters at start."""
    now = activations(model, params, inputs)
    change = {name: _size(now[name] - then[name]) for name in now}
    return {name: _size(x) for name, x in now.items()}, change


def _size(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(x.astype(jnp.float32)))


def _mean(values: Any) -> np.ndarray:
    return np.mean(np.asarray(values, np.float64), axis=0)
