"""AdamW with linear warm-up, cosine decay, clipping, and no decay of biases and norms."""

import re
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hyla_lm.config import UserError, configurable, setting
from hyla_lm.parallel.mesh import path_of

HEAD_BIASES = r"(query|key|value)/bias$|relative_bias$"


@configurable
@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW: linear warm-up from 0, then cosine to a fraction of the peak at the last step."""

    learning_rate: float = setting(1e-3, "peak learning rate", minimum=0)
    warmup_steps: int = setting(1000, "steps of the linear rise from 0", minimum=0)
    final_fraction: float = setting(0.1, "learning rate at the end, as a share of the peak")
    weight_decay: float = setting(
        0.1, "decoupled decay, multiplied by the learning rate", minimum=0
    )
    b1: float = setting(0.9, "decay of the mean of gradients")
    b2: float = setting(0.999, "decay of the mean of squared gradients")
    epsilon: float = setting(1e-8, "added to the root of the second moment")
    cosine_ends_early: bool = setting(
        False, "end the cosine warmup_steps before the last step, as the paper's code did"
    )
    decay_attention_biases: bool = setting(
        False, "decay biases of queries, keys and values and the T5 bias, as the paper's code did"
    )
    cosine_begins: int | None = setting(
        None, "step at which the cosine begins; None begins it after the warm-up", minimum=0
    )
    clip_norm: float | None = setting(None, "largest global gradient norm; None does not clip")


def warmup_cosine(
    peak: Any,
    warmup_steps: Any,
    end_step: Any,
    final_fraction: float = 0.1,
    begin_step: int | None = None,
):
    """Learning rate of update n, counted from 0: linear from 0, then cosine until end_step.

    With begin_step the peak stays from the end of the rise until then.
    """
    begin = warmup_steps if begin_step is None else begin_step

    def schedule(count: Any) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        rising = peak * step / jnp.maximum(warmup_steps, 1)
        progress = jnp.clip((step - begin) / (end_step - begin), 0, 1)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * progress))
        falling = peak * (final_fraction + (1 - final_fraction) * cosine)
        return jnp.where(step < warmup_steps, rising, falling)

    return schedule


def is_decayed(key_path: tuple[Any, ...]) -> bool:
    """False for biases (T5's relative bias too) and norm scales, by the name of the parameter."""
    return not str(getattr(key_path[-1], "key", key_path[-1])).endswith(("bias", "scale"))


def decay_mask(params: Any) -> Any:
    """A tree of bools: whether each parameter decays."""
    return jax.tree_util.tree_map_with_path(lambda path, _: is_decayed(path), params)


def decay_mask_with_attention_biases(params: Any) -> Any:
    """decay_mask, except that biases of heads, which have two dimensions, decay too."""

    def decays(key_path: tuple[Any, ...], _: Any) -> bool:
        return is_decayed(key_path) or re.search(HEAD_BIASES, path_of(key_path)) is not None

    return jax.tree_util.tree_map_with_path(decays, params)


def make_schedule(config: OptimizerConfig, steps: int):
    """The run's schedule; raises UserError when the warm-up does not fit into it."""
    end = cosine_end(config, steps)
    if config.warmup_steps >= end:
        twice = "twice " if config.cosine_ends_early else ""
        raise UserError(
            f"{twice}OptimizerConfig.warmup_steps = {config.warmup_steps} must be below "
            f"TrainConfig.steps = {steps}: change one."
        )
    begins = config.cosine_begins
    if begins is not None and not config.warmup_steps <= begins < end:
        raise UserError(
            f"OptimizerConfig.cosine_begins = {begins} must be from OptimizerConfig.warmup_steps = "
            f"{config.warmup_steps} to below the end of the cosine, {end}: change one."
        )
    return warmup_cosine(
        config.learning_rate, config.warmup_steps, end, config.final_fraction, begins
    )


def cosine_end(config: OptimizerConfig, steps: int) -> int:
    """The update at which the cosine ends."""
    return steps - config.warmup_steps if config.cosine_ends_early else steps


def make_optimizer(
    config: OptimizerConfig, schedule: Any, mask: Any = None, weight_decay: Any = None
) -> optax.GradientTransformation:
    """Clipping, then AdamW under the schedule; `mask` maps parameters to whether they decay.

    `weight_decay` may be a traced number; None takes the configured one.
    """
    if weight_decay is None:
        weight_decay = config.weight_decay
    if mask is None:
        decays_all = config.decay_attention_biases
        mask = decay_mask_with_attention_biases if decays_all else decay_mask
    adamw = optax.adamw(
        schedule, config.b1, config.b2, config.epsilon, weight_decay=weight_decay, mask=mask
    )
    if config.clip_norm is None:
        return adamw
    clip = optax.clip_by_global_norm(config.clip_norm)
    return optax.chain(clip._replace(update=jax.named_scope("clip")(clip.update)), adamw)
