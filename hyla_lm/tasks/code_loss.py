"""An auxiliary loss on the latent codes of attention, added to the loss of any task.

Codes are observed in the forward pass of the task's own loss: they are made once more from its
queries and keys, and again in the backward pass, so that no layer's are kept. A run without the
loss has the compiled step of a run that knows of none.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import Request
from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import (
    ObservedDecoder,
    contrast,
    entropy_over_heads,
    mean_square,
    moments,
)
from hyla_lm.tasks.protocol import Batch, LossFn, Objective

KINDS = {
    "l2": "the mean square of the codes",
    "entropy": "the entropy over heads of a pair's squared code; a negative weight spreads codes",
    "contrastive": "codes of examples of the same function agree, and others differ",
}
METRIC = "code_loss"


@configurable
@dataclass(frozen=True)
class CodeLoss:
    """An auxiliary loss on the latent codes, a mean over layers: TrainConfig.code_loss."""

    kind: str = setting("entropy", "what is lowered", choices=tuple(KINDS), explained=KINDS)
    weight: float = setting(
        0.01, "times the loss is added to the task's; 0 only logs it, below 0 raises an entropy"
    )
    temperature: float = setting(0.1, "of the cosines that the contrastive loss compares")
    layers: tuple[int, ...] = setting((), "layers whose codes it takes, from 0 on; () takes all")

    def check(self) -> None:
        if self.weight < 0 and self.kind != "entropy":
            raise UserError(
                f"CodeLoss.weight = {self.weight} is below 0, which only CodeLoss.kind = 'entropy' "
                "may have: give another weight."
            )
        if self.temperature <= 0:
            raise UserError(f"CodeLoss.temperature = {self.temperature} must be above 0.")

    @property
    def description(self) -> str:
        """The kind, its weight and its layers, in words."""
        at = f" at temperature {self.temperature:g}" if self.kind == "contrastive" else ""
        layers = f"layers {', '.join(map(str, self.layers))}" if self.layers else "all layers"
        return f"{self.kind}{at} of {layers}, weight {self.weight:g}"


def with_code_loss(config: CodeLoss | None, objective: Objective, model: Decoder) -> LossFn:
    """The loss that is trained: the objective's own, or with the code loss and its metric.

    The code loss is a mean over all devices' part of a micro-batch. Micro-batches weigh as the
    task's counts do. Raises UserError where model or task do not have what it needs.
    """
    if config is None:
        return objective.loss(model)
    _check_codes(config, model.config)
    of_batch = term_of(config, objective, model)
    layers = config.layers or range(model.config.num_layers)

    def loss_fn(
        params: object, batch: Batch, dropout_key: jax.Array | None
    ) -> tuple[Pair, Metrics]:
        runs: list[list[Request]] = []
        observed = ObservedDecoder(model.config, model.io, model.cache_length, runs.append)
        (total, count), metrics = objective.loss(observed)(params, batch, dropout_key)
        if len(runs) != 1:
            raise UserError(
                f"TrainConfig.code_loss needs a task that runs the model once, and "
                f"{type(objective).__name__} runs it {len(runs)} times: leave it out."
            )
        with jax.named_scope(METRIC):
            losses = [of_batch(runs[0][layer], batch) for layer in layers]
            code_sum = count * (sum(losses) / len(losses))
        return (total + config.weight * code_sum, count), {**metrics, METRIC: (code_sum, count)}

    return loss_fn


def term_of(
    config: CodeLoss, objective: Objective, model: Decoder
) -> Callable[[Request, Batch], jax.Array]:
    """The loss of one layer's codes, a mean over all devices."""
    if config.kind != "contrastive":
        sums = jax.checkpoint(mean_square if config.kind == "l2" else entropy_over_heads)
        return lambda request, batch: _mean(jax.tree.map(_over_devices, sums(request)))
    functions, answers = getattr(objective, "functions", None), model.answers or 1
    if functions is None:
        raise UserError(
            "CodeLoss.kind = 'contrastive' needs examples whose function is known, and "
            f"{type(objective).__name__} has no `functions`: take 'l2' or 'entropy', or give the "
            "task that method (hyla_lm.tasks.protocol.Objective)."
        )

    def contrastive(request: Request, batch: Batch) -> jax.Array:
        features_BxF = jax.checkpoint(moments, static_argnums=1)(request, answers)
        label_BxM = _of_all_devices(functions(batch))
        return _mean(contrast(_of_all_devices(features_BxF), label_BxM, config.temperature))

    return contrastive


def _mean(pair: Pair) -> jax.Array:
    """sum / count; 0 where nothing was counted, as in a batch whose functions all differ."""
    total, count = pair
    return total / jnp.maximum(count, 1)


def _over_devices(x: jax.Array) -> jax.Array:
    """The sum over the devices whose rows are computed apart (parallel/batch_sums.py)."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.psum(x, axes) if axes else x


def _of_all_devices(x_Bx: jax.Array) -> jax.Array:
    """The rows of all devices whose rows are computed apart."""
    axes = jax.sharding.get_abstract_mesh().manual_axes
    return jax.lax.all_gather(x_Bx, axes, tiled=True) if axes else x_Bx


def _check_codes(config: CodeLoss, model: ModelConfig) -> None:
    last = model.num_layers - 1
    if not all(0 <= layer <= last for layer in config.layers):
        raise UserError(
            f"CodeLoss.layers = {config.layers} names layers that are not there: the model has "
            f"layers 0 to {last}."
        )
    for layer in config.layers or range(model.num_layers):
        network = model.spec(layer).pair_network
        if network is not None and network.reads_apart:
            name = model.pattern[layer % len(model.pattern)]
            raise UserError(
                f"TrainConfig.code_loss needs one code a pair, and {name!r} in "
                "ModelConfig.attention has two: take another variant, or name layers of others in "
                "CodeLoss.layers."
            )
