"""A coordinate check: how activations, and their changes in training, grow with a model's width.

One config is made at several widths, standard and in muP, and trained for a few steps. After each
step the mean absolute value of every activation on one batch is measured, and that of its change
since the start. docs/width.md says what is expected, and why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.attention.spec import VARIANTS
from hyla_lm.config.experiment import Experiment
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers
from hyla_lm.model.width import rate_of
from hyla_lm.optim import OptimizerConfig, make_optimizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import init_params
from hyla_lm.tasks.protocol import Batch, Objective, TaskConfig
from hyla_lm.tools.output import new_figure, png
from hyla_lm.train_step import init_state, make_train_step

STANDARD, MUP = "standard", "mup"
SIZE, CHANGE = "size", "change"
BRANCHES = ("attention", "feedforward")
# Before training the logits fall as 1/sqrt(width) in muP: docs/width.md says why.
LOGITS = "logits"
FROM_SCORES = ("code", "attention", "value units")


@dataclass(frozen=True)
class Training:
    """What all models of a check are trained on: a batch for each step, and how."""

    objective: Objective
    batches: Sequence[Batch]
    optimizer: OptimizerConfig
    seeds: Sequence[int]


@dataclass(frozen=True)
class Measured:
    """One model, the mean over its seeds: values by part and quantity, and the loss of each step.

    A size has a value for each step from 0 on, a change from step 1 on.
    """

    values_S: Mapping[tuple[str, str], np.ndarray]
    loss_S: np.ndarray


@dataclass(frozen=True)
class Curve:
    """A quantity's mean absolute value (`part` SIZE) or its change since step 0, at each width.

    `is_judged` says whether muP must keep it flat where that counts: a size at step 0, and a change
    after the last step.
    """

    variant: str
    parametrisation: str
    quantity: str
    part: str
    widths: tuple[int, ...]
    values_SxW: np.ndarray
    is_judged: bool

    @property
    def steps(self) -> range:
        """The steps of the values."""
        first = int(self.part == CHANGE)
        return range(first, first + len(self.values_SxW))

    @property
    def at(self) -> int:
        """The index of the step that counts."""
        return 0 if self.part == SIZE else -1

    @property
    def slope(self) -> float:
        """The slope at the step that counts."""
        return slope_of(self.widths, self.values_SxW[self.at])

    def as_json(self) -> dict[str, Any]:
        """Slopes and values at all steps, rounded."""
        return {
            "variant": self.variant,
            "parametrisation": self.parametrisation,
            "quantity": self.quantity,
            "part": self.part,
            "judged_steps": [self.steps[self.at]] if self.is_judged else [],
            "steps": list(self.steps),
            "slopes": [_rounded(slope_of(self.widths, values)) for values in self.values_SxW],
            "values": [[_rounded(value) for value in values] for values in self.values_SxW],
        }


def slope_of(widths: Sequence[int], values_W: Sequence[float] | np.ndarray) -> float:
    """The least-squares slope of log2(value) against log2(width); nan if a value is 0."""
    if min(values_W) <= 0:
        return float("nan")
    return float(np.polyfit(np.log2(widths), np.log2(values_W), 1)[0])


def at_width(config: ModelConfig, width: int, grow: str) -> ModelConfig:
    """The model of that width, with more "heads" or a larger "head_dim", all else in proportion."""
    heads = {"num_heads": config.num_heads}
    sizes = {"head_dim": config.head_dim, "value_dim": config.value_size}
    growing = {"mlp_dim": config.mlp_dim, **(heads if grow == "heads" else sizes)}
    for name, size in growing.items():
        if size * width % config.model_dim:
            raise UserError(
                f"at width {width}, ModelConfig.{name} = {size} at width {config.model_dim} is no "
                f"whole number: give widths that are multiples of {config.model_dim}.",
                "widths",
            )
    grown: dict[str, Any] = {n: size * width // config.model_dim for n, size in growing.items()}
    return replace(config, model_dim=width, **grown)


def family(config: ModelConfig, widths: Sequence[int], grow: str, kind: str) -> list[ModelConfig]:
    """The model at each width; in muP, the base is the config's own, or else the first width."""
    models = [at_width(config, width, grow) for width in widths]
    if kind == STANDARD:
        return [replace(model, base_width=None, base_head_dim=None) for model in models]
    base = at_width(config, config.base_width or widths[0], grow)
    return [replace(m, base_width=base.model_dim, base_head_dim=base.head_dim) for m in models]


def training(experiment: Experiment, steps: int, seeds: int, random_tokens: bool) -> Training:
    """The first batches of an experiment, or one of random tokens, which needs no data."""
    train = experiment.train
    of = range(train.seed, train.seed + seeds)
    assert train.task is not None
    if random_tokens:
        objective, batch = _random(train.task, train.batch_size)
        return Training(objective, [batch] * steps, experiment.optimizer, of)
    task = train.task.prepare_task(train.batch_size)
    stream = task.train_stream(BatchShard(train.batch_size, train.seed), None)
    try:
        batches = [next(stream) for _ in range(steps)]
    finally:
        stream.close()
    return Training(task, batches, experiment.optimizer, of)


def _random(task: TaskConfig, batch_size: int) -> tuple[Objective, Batch]:
    """An objective without data and a batch of random tokens for it."""
    objective = task.planned_objective()
    if not isinstance(objective.io, Tokens):
        raise UserError(
            f"--random_tokens: TrainConfig.task = @{type(task).__name__}() takes no tokens: "
            "leave the flag out."
        )
    shape = objective.batch_shapes(batch_size)["tokens"].shape
    tokens = np.random.default_rng(0).integers(objective.io.vocab_size, size=shape, dtype=np.int32)
    rows = np.arange(batch_size, dtype=np.int32)
    return objective, {"tokens": tokens, "text_bytes": np.ones_like(rows), "row": rows}


def measure(config: ModelConfig, training: Training) -> Measured:
    """Trains the model from each seed at a constant learning rate, and measures the first batch."""
    model = Decoder(config, training.objective.io)
    schedule = optax.constant_schedule(training.optimizer.learning_rate)
    optimizer = make_optimizer(training.optimizer, schedule, rate_of=rate_of(config))
    init = jax.jit(partial(init_state, partial(init_params, model), optimizer))
    step = jax.jit(make_train_step(training.objective.loss(model), optimizer, 1, 0))
    act, sizes = jax.jit(partial(activations, model)), jax.jit(partial(_sizes, model))
    first = training.batches[0]
    # Each row is measured as one document, whatever the task packs into it.
    inputs = first["features"] if "features" in first else first["tokens"][:, :-1]

    def of_seed(seed: int) -> tuple[list[Any], list[float]]:
        state, losses = init(seed), []
        start = act(state.params, inputs)
        measured = [sizes(state.params, start, inputs)]
        for batch in training.batches:
            state, output = step(state, batch)
            losses.append(float(output.objective[0] / output.objective[1]))
            measured.append(sizes(state.params, start, inputs))
        return jax.device_get(measured), losses

    runs = [of_seed(seed) for seed in training.seeds]
    values_S = {
        key: _mean([[step[key] for step in measured] for measured, _ in runs])[
            int(key[0] == CHANGE) :
        ]
        for key in runs[0][0][0]
    }
    return Measured(values_S, _mean([losses for _, losses in runs]))


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
        named |= _value_units(layer, view)
        for name in BRANCHES:
            named[f"{name} {layer}"] = block[name]["__call__"][0]
        named[f"residual {layer}"] = block["__call__"][0]
    return {**named, LOGITS: model.apply({"params": params}, hidden, method="logits")}


def _value_units(layer: int, view: LayerView) -> dict[str, jax.Array]:
    if view.request.spec.value_network == "linear":
        return {}
    return {f"value units {layer}": view.value_units()[-1]}


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


def curves_of(
    variant: str, parametrisation: str, grow: str, measured: Mapping[int, Measured]
) -> list[Curve]:
    """The curves of models by their width."""
    widths = tuple(measured)
    keys = sorted(measured[widths[0]].values_S, key=lambda key: (key[0] == CHANGE, key[1]))
    curves = []
    for part, name in keys:
        values_SxW = np.stack([one.values_S[part, name] for one in measured.values()], axis=1)
        is_judged = part == CHANGE or _starts_flat(variant, grow, name)
        curves.append(Curve(variant, parametrisation, name, part, widths, values_SxW, is_judged))
    return curves


def _starts_flat(variant: str, grow: str, name: str) -> bool:
    """Whether muP keeps the first size of a quantity flat: larger heads shrink plain scores."""
    shrinks = grow == "head_dim" and VARIANTS[variant].normalization == "identity"
    return name != LOGITS and not (shrinks and name.startswith(FROM_SCORES))


def exceeding(curves: Sequence[Curve], parametrisation: str, bound: float) -> list[Curve]:
    """The judged curves whose slope is not within the bound."""
    judged = [c for c in curves if c.parametrisation == parametrisation and c.is_judged]
    return [c for c in judged if not abs(c.slope) <= bound]


def draw(curves: Sequence[Curve]) -> bytes:
    """A PNG: a row for each variant; sizes at the start and changes at the end over width."""
    variants = list(dict.fromkeys(c.variant for c in curves))
    kinds = list(dict.fromkeys(c.parametrisation for c in curves))
    columns = [(kind, part) for part in (SIZE, CHANGE) for kind in kinds]
    figure = new_figure(4.2 * len(columns), 4.4 * len(variants))
    grid = figure.subplots(len(variants), len(columns), squeeze=False)
    for row, variant in zip(grid, variants, strict=True):
        for axes, (kind, part) in zip(row, columns, strict=True):
            _panel(
                axes,
                [
                    c
                    for c in curves
                    if (c.variant, c.parametrisation, c.part) == (variant, kind, part)
                ],
            )
        for of_part in (row[: len(kinds)], row[len(kinds) :]):
            for axes in of_part[1:]:
                axes.sharey(of_part[0])
    figure.supxlabel("model_dim")
    return png(figure)


def _panel(axes: Any, curves: Sequence[Curve]) -> None:
    """The curves of one variant, parametrisation and part; those that are not judged are dotted."""
    first = curves[0]
    for c in curves:
        style, label = "-o" if c.is_judged else ":o", f"{c.quantity} {c.slope:+.2f}"
        axes.plot(c.widths, c.values_SxW[c.at], style, label=label, markersize=3)
    what = "size at the start" if first.part == SIZE else f"change after {first.steps[-1]} steps"
    axes.set_title(f"{first.variant}, {first.parametrisation}: {what}", fontsize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(first.widths, [str(width) for width in first.widths], minor=False)
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "frameon": False}
    axes.legend(fontsize=7, ncols=2, title="slope", title_fontsize=7, **below)


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
