"""A coordinate check: how activations, and their changes in training, grow with a model's width.

One config is made at several widths, standard and in muP, and trained for a few steps. After each
step the mean absolute value of every activation on one batch is measured, and that of its change
since the start. docs/choices.md says what is expected, and why.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.config.experiment import Experiment
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import attention_layers
from hyla_lm.model.width import rate_of
from hyla_lm.optim import OptimizerConfig, make_optimizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import init_params
from hyla_lm.tasks.protocol import Batch, Objective
from hyla_lm.tools.output import plain
from hyla_lm.train_step import init_state, make_train_step

STANDARD, MUP = "standard", "mup"
SIZE, CHANGE = "size", "change"
BRANCHES = ("attention", "feedforward")
# Before training the logits fall as 1/sqrt(width) in muP: docs/choices.md says why.
LOGITS = "logits"


@dataclass(frozen=True)
class Curve:
    """A quantity's mean absolute value (`part` SIZE) or its change since step 0, at each width.

    A size has a value for each step from 0 on, a change from step 1 on; what counts is the size at
    the start and the change after the last step.
    """

    parametrisation: str
    quantity: str
    part: str
    widths: tuple[int, ...]
    values_SxW: np.ndarray

    @property
    def is_judged(self) -> bool:
        """Whether muP must keep it flat."""
        return self.part == CHANGE or self.quantity != LOGITS

    @property
    def counting_W(self) -> np.ndarray:
        """The values that count."""
        return self.values_SxW[0 if self.part == SIZE else -1]

    @property
    def slope(self) -> float:
        return slope_of(self.widths, self.counting_W)

    def as_json(self) -> dict[str, Any]:
        """Slopes and values at all steps."""
        first = int(self.part == CHANGE)
        return {
            "parametrisation": self.parametrisation,
            "quantity": self.quantity,
            "part": self.part,
            "is_judged": self.is_judged,
            "steps": [first + n for n in range(len(self.values_SxW))],
            "slopes": [_rounded(slope_of(self.widths, values)) for values in self.values_SxW],
            "values": [[_rounded(value) for value in values] for values in self.values_SxW],
        }


def slope_of(widths: Sequence[int], values_W: np.ndarray) -> float:
    """The least-squares slope of log2(value) against log2(width); nan if a value is 0."""
    if min(values_W) <= 0:
        return float("nan")
    return float(np.polyfit(np.log2(widths), np.log2(values_W), 1)[0])


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None


def check(
    experiment: Experiment, widths: Sequence[int], steps: int, seeds: int
) -> tuple[list[Curve], dict[str, dict[int, list[float]]]]:
    """The curves of both parametrisations, and the losses of each by width."""
    train = experiment.train
    assert train.task is not None
    base = replace(experiment.model, dtype="float32", scan_layers=False)
    families = {kind: family(base, widths, kind) for kind in (STANDARD, MUP)}
    task = train.task.prepare_task(train.batch_size)
    stream = task.train_stream(BatchShard(train.batch_size, train.seed), None)
    try:
        batches = [next(stream) for _ in range(steps)]
    finally:
        stream.close()
    of_seeds = range(train.seed, train.seed + seeds)
    curves: list[Curve] = []
    losses: dict[str, dict[int, list[float]]] = {}
    for kind, models in families.items():
        measured = []
        for model in models:
            print(f"{kind}, width {model.model_dim}", file=sys.stderr, flush=True)
            measured.append(_measure(model, task, batches, experiment.optimizer, of_seeds))
        losses[kind] = dict(zip(widths, (loss_S.tolist() for _, loss_S in measured), strict=True))
        for part, name in sorted(measured[0][0], key=lambda key: (key[0] == CHANGE, key[1])):
            values_SxW = np.stack([values[part, name] for values, _ in measured], axis=1)
            curves.append(Curve(kind, name, part, tuple(widths), values_SxW))
    return curves, losses


def family(config: ModelConfig, widths: Sequence[int], kind: str) -> list[ModelConfig]:
    """The model at each width; in muP, the base is the config's own, or else the first width."""
    models = [at_width(config, width) for width in widths]
    if kind == STANDARD:
        return [replace(model, base_width=None, base_head_dim=None) for model in models]
    base_width = config.base_width or widths[0]
    return [replace(m, base_width=base_width, base_head_dim=config.head_dim) for m in models]


def at_width(config: ModelConfig, width: int) -> ModelConfig:
    """The model of that width, with more heads and all else in proportion."""
    grown = {}
    for name in ("num_heads", "mlp_dim"):
        size = getattr(config, name) * width
        if size % config.model_dim:
            raise UserError(
                f"--widths: at width {width}, ModelConfig.{name} is no whole number: give widths "
                f"that are multiples of {config.model_dim}."
            )
        grown[name] = size // config.model_dim
    return replace(config, model_dim=width, **grown)


def _measure(
    config: ModelConfig,
    objective: Objective,
    batches: Sequence[Batch],
    settings: OptimizerConfig,
    seeds: Sequence[int],
) -> tuple[Mapping[tuple[str, str], np.ndarray], np.ndarray]:
    """Trains the model from each seed at a constant learning rate, and measures the first batch.

    Returns the values of each part and quantity by step, and the losses: means over the seeds.
    """
    model = Decoder(config, objective.io)
    schedule = optax.constant_schedule(settings.learning_rate)
    optimizer = make_optimizer(settings, schedule, rate_of=rate_of(config))
    init = jax.jit(partial(init_state, partial(init_params, model), optimizer))
    step = jax.jit(make_train_step(objective.loss(model), optimizer, 1, 0))
    act, sizes = jax.jit(partial(activations, model)), jax.jit(partial(_sizes, model))
    first = batches[0]
    # Each row is measured as one document, whatever the task packs into it.
    inputs = first["features"] if "features" in first else first["tokens"][:, :-1]

    def of_seed(seed: int) -> tuple[list[Any], list[float]]:
        state, losses = init(seed), []
        start = act(state.params, inputs)
        measured = [sizes(state.params, start, inputs)]
        for batch in batches:
            state, output = step(state, batch)
            losses.append(float(output.objective[0] / output.objective[1]))
            measured.append(sizes(state.params, start, inputs))
        return jax.device_get(measured), losses

    runs = [of_seed(seed) for seed in seeds]
    values_S = {}
    for part, name in runs[0][0][0]:
        every = _mean([[at_step[part, name] for at_step in measured] for measured, _ in runs])
        values_S[part, name] = every[int(part == CHANGE) :]
    return values_S, _mean([losses for _, losses in runs])


def activations(model: Decoder, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
    """Embeddings, each layer's code, value units, branches and sum, and logits; layers unscanned.

    Call it within jit, which drops what is not used.
    """
    hidden, kept = model.apply(
        {"params": params},
        inputs,
        method="hidden",
        capture_intermediates=_is_observed,
        mutable=["intermediates"],
    )
    observed = kept["intermediates"]
    named = {"embedding": observed["embed"]["__call__"][0]}
    for layer, view in enumerate(attention_layers(model, params, inputs)):
        block = observed["blocks"][f"block_{layer}"]
        named[f"code {layer}"] = view.code_BxHxTxS
        if view.request.spec.value_network != "linear":
            named[f"value units {layer}"] = view.value_units()[-1]
        for name in BRANCHES:
            named[f"{name} {layer}"] = block[name]["__call__"][0]
        named[f"residual {layer}"] = block["__call__"][0]
    return {**named, LOGITS: model.apply({"params": params}, hidden, method="logits")}


def _is_observed(module: nn.Module, method: str) -> bool:
    return method == "__call__" and (
        module.name in (*BRANCHES, "embed") or str(module.name).startswith("block_")
    )


def _sizes(
    model: Decoder, params: Any, start: Any, inputs: jax.Array
) -> dict[tuple[str, str], jax.Array]:
    """How large each activation is, and how far from its value at the `start`."""
    now = activations(model, params, inputs)
    sizes = {(SIZE, name): _size(x) for name, x in now.items()}
    return sizes | {(CHANGE, name): _size(x - start[name]) for name, x in now.items()}


def _size(x: jax.Array) -> jax.Array:
    return jnp.mean(jnp.abs(x.astype(jnp.float32)))


def _mean(values: Any) -> np.ndarray:
    return np.mean(np.asarray(values, np.float64), axis=0)


def table(curves: Sequence[Curve], bound: float) -> list[str]:
    """The slopes of each quantity, at the start and at the end; in brackets what is not judged."""
    columns = [(kind, part) for kind in (STANDARD, MUP) for part in (SIZE, CHANGE)]
    cells = {(c.quantity, c.parametrisation, c.part): _cell(c, bound) for c in curves}
    names = dict.fromkeys(c.quantity for c in curves)
    when = {SIZE: "at start", CHANGE: "change"}
    head = ["", *(f"{kind} {when[part]}" for kind, part in columns)]
    return plain([head, *([name, *(cells[name, *column] for column in columns)] for name in names)])


def _cell(curve: Curve, bound: float) -> str:
    if not curve.is_judged:
        return f"({curve.slope:+.2f})    "
    return f"{curve.slope:+.2f} {'flat' if abs(curve.slope) <= bound else 'not ':4}"
