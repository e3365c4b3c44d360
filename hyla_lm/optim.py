"""The optimizer and its schedule: warm-up, clipping, and no decay of biases and norms."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.muon import muon_and
from hyla_lm.parallel.sharding import path_of

HEAD_BIASES = r"(query|key|value)/bias$|relative_bias$"
Schedule = Callable[[Any], Any]
DECAYS = ("linear", "1-sqrt")
# What is left of the fall, from 1 to 0, by the share of it that is over.
SHAPES: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "cosine": lambda xp, progress: 0.5 * (1 + xp.cos(xp.pi * progress)),
        "linear": lambda xp, progress: 1 - progress,
        "1-sqrt": lambda xp, progress: 1 - xp.sqrt(progress),
    }
)
OPTIMIZERS = ("adamw", "muon")
# The settings that only one schedule follows: the other refuses them.
SCHEDULES = {
    "cosine": ("cosine_ends_early", "cosine_begins"),
    "wsd": ("decay_share", "decay_shape", "decay_begins"),
}


@configurable
@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon: linear warm-up from 0, then a fall to a fraction of the peak at the end."""

    learning_rate: float = setting(1e-3, "peak learning rate", minimum=0, maximum=1e29)
    warmup_steps: int = setting(1000, "steps of the linear rise from 0", minimum=0)
    final_fraction: float = setting(
        0.1, "learning rate at the end, as a share of the peak", minimum=0, maximum=1
    )
    weight_decay: float = setting(
        0.1, "decoupled decay, multiplied by the learning rate", minimum=0
    )
    b1: float = setting(0.9, "decay of the mean of gradients", minimum=0, maximum=0.99999)
    b2: float = setting(0.999, "decay of the mean of squared gradients", minimum=0, maximum=0.99999)
    epsilon: float = setting(1e-8, "added to the root of the second moment", minimum=1e-18)
    cosine_ends_early: bool = setting(
        False, "end the cosine warmup_steps before the last step, as the paper's code did"
    )
    decay_attention_biases: bool = setting(
        False, "decay biases of queries, keys and values and the T5 bias, as the paper's code did"
    )
    cosine_begins: int | None = setting(
        None, "step at which the cosine begins; None begins it after the warm-up", minimum=0
    )
    clip_norm: float | None = setting(
        None, "largest global gradient norm; None does not clip", minimum=1e-6
    )
    optimizer: str = setting(
        "adamw",
        "what makes an update of the gradients",
        choices=OPTIMIZERS,
        explained={
            "adamw": "AdamW for all parameters",
            "muon": "Muon for the matrices of hidden layers, AdamW for all else",
        },
    )
    schedule: str = setting(
        "cosine",
        "the learning rate after the warm-up",
        choices=tuple(SCHEDULES),
        explained={
            "cosine": "a cosine from the peak to the end",
            "wsd": "the peak, and a decay in the last decay_share of the steps",
        },
    )
    decay_share: float = setting(0.2, "share of all steps in which wsd decays", above=0, below=1)
    decay_shape: str = setting(
        "linear", "how wsd decays: a line, or 1 - sqrt of the share that is over", choices=DECAYS
    )
    decay_begins: int | None = setting(
        None, "step at which wsd begins to decay; None takes decay_share", minimum=0
    )

    def check(self) -> None:
        if self.learning_rate * self.weight_decay > 1:
            raise UserError(
                f"OptimizerConfig.weight_decay = {self.weight_decay} takes more than all of a "
                f"matrix at learning_rate = {self.learning_rate}: their product is at most 1."
            )
        for schedule, names in SCHEDULES.items():
            for name in names:
                value = getattr(self, name)
                if schedule != self.schedule and value != getattr(OptimizerConfig, name):
                    raise UserError(
                        f"OptimizerConfig.{name} = {value!r} goes with OptimizerConfig.schedule = "
                        f"{schedule!r} only: set both or neither."
                    )


def decay_mask(params: Any, attention_biases: bool = False) -> Any:
    """A tree of bools: whether each parameter decays, by its name.

    Biases (T5's relative bias too) and norm scales do not. With `attention_biases` those of heads,
    which have two dimensions, do.
    """

    def decays(key_path: tuple[Any, ...], _: Any) -> bool:
        path = path_of(key_path)
        is_on_request = attention_biases and re.search(HEAD_BIASES, path) is not None
        return is_on_request or not path.endswith(("bias", "scale"))

    return jax.tree_util.tree_map_with_path(decays, params)


def make_schedule(config: OptimizerConfig, steps: int) -> Schedule:
    """The run's schedule; raises UserError when warm-up and fall do not fit into it."""
    begin, end = span_of_fall(config, steps, config.warmup_steps)
    if config.warmup_steps >= steps:
        raise UserError(
            f"OptimizerConfig.warmup_steps = {config.warmup_steps} must be below TrainConfig.steps "
            f"= {steps}: add --gin.OptimizerConfig.warmup_steps={steps // 10}, or "
            f"--gin.TrainConfig.steps={10 * config.warmup_steps}."
        )
    if not config.warmup_steps <= begin < end:
        where = "decay_share or decay_begins" if config.schedule == "wsd" else "cosine_begins"
        raise UserError(
            f"the learning rate cannot rise for OptimizerConfig.warmup_steps = "
            f"{config.warmup_steps} steps and fall from step {begin} to {end}: change it, "
            f"TrainConfig.steps = {steps} or OptimizerConfig.{where}."
        )
    return schedule_of(config, steps, config.learning_rate, config.warmup_steps)


def schedule_of(config: OptimizerConfig, steps: int, peak: Any, warmup_steps: Any) -> Schedule:
    """Learning rate of update n, counted from 0, with a peak and a warm-up that may be traced.

    It is linear from 0 to the peak, kept until the fall begins, and then falls to a fraction of the
    peak. That of an update that is an int is computed here, by NumPy, and does not wait for a
    device.
    """
    begin, end = span_of_fall(config, steps, warmup_steps)
    final_fraction = config.final_fraction
    shape = SHAPES[config.decay_shape if config.schedule == "wsd" else "cosine"]

    def schedule(count: Any) -> Any:
        xp: Any = np if isinstance(count, int) else jnp
        step = xp.asarray(count, xp.float32)
        rising = peak * step / xp.maximum(xp.float32(warmup_steps), 1)
        progress = xp.clip((step - begin) / (end - begin), 0, 1)
        falling = peak * (final_fraction + (1 - final_fraction) * shape(xp, progress))
        return xp.where(step < warmup_steps, rising, falling)

    return schedule


def span_of_fall(config: OptimizerConfig, steps: int, warmup_steps: Any) -> tuple[Any, Any]:
    """The updates at which the learning rate begins to fall and has fallen."""
    if config.schedule == "wsd":
        begin = steps - max(1, round(config.decay_share * steps))
        return begin if config.decay_begins is None else config.decay_begins, steps
    begin = warmup_steps if config.cosine_begins is None else config.cosine_begins
    return begin, steps - warmup_steps if config.cosine_ends_early else steps


def make_optimizer(
    config: OptimizerConfig,
    schedule: Any,
    mask: Any = None,
    weight_decay: Any = None,
    rate_of: Callable[[str], float] | None = None,
) -> optax.GradientTransformation:
    """Clipping, the optimizer's direction, decay, then the schedule.

    `mask` maps parameters to whether they decay. `weight_decay` may be a traced number; None takes
    the configured one. `rate_of` gives a factor of the learning rate, not of the decay, by path.
    """
    if weight_decay is None:
        weight_decay = config.weight_decay
    if mask is None:
        mask = partial(decay_mask, attention_biases=config.decay_attention_biases)
    direction = optax.scale_by_adam(config.b1, config.b2, config.epsilon)
    if config.optimizer == "muon":
        direction = muon_and(direction)
    stages = [direction]
    if rate_of is not None:
        if config.optimizer != "adamw":
            raise UserError(
                f"OptimizerConfig.optimizer = {config.optimizer!r} has no rules for "
                "ModelConfig.base_width: set it to 'adamw' or ModelConfig.base_width to None."
            )
        stages.append(scale_by_path(rate_of))
    stages += [
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(schedule),
    ]
    updates = optax.chain(*stages)
    if config.clip_norm is None:
        return updates
    clip = optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clip._replace(update=jax.named_scope("clip")(clip.update)), updates)


def scale_by_path(factor_of: Callable[[str], float]) -> optax.GradientTransformation:
    """Multiplies the update of each parameter by the factor of its path."""

    def scale(updates: Any, params: Any = None) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, update: update * factor_of(path_of(path)), updates
        )

    return optax.stateless(scale)
