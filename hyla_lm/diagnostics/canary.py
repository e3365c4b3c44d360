"""The canary: the kernel that trains against the reference, on rows that are not trained on.

The relative difference of the gradients is the norm of their difference over the norm of the
reference's, all parameters together. On a CPU, `blocked` against `reference`, without a fault:

- float32: up to 2e-5 (2 layers, 64 and 512 positions); with attention 1 % too large 5e-3 or more.
- bfloat16: up to 0.007 in the first 300 steps of gin/quickstart.gin, 0.03 with 6 layers, 0.13 with
  2 heads of 8 and 128 tokens; 1 % too large is within that, 10 % gives 0.8 with 6 layers.

Hence 1e-3 in float32, 50 times what is sound and a fifth of a fault of 1 %; 0.5 in bfloat16, 4
times the roughest sound model, which finds only gross faults. A run that watches its own curve may
set CanaryConfig.bound to a few times that.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from hyla_lm.errors import UserError
from hyla_lm.parallel.batch_sums import summed_over_batch
from hyla_lm.tasks.protocol import Batch, LossFn
from hyla_lm.train_step import split_batch, summed_gradients

BOUNDS = {"float32": 1e-3, "bfloat16": 0.5}
Differences = dict[str, jax.Array]


class Unreliable(UserError):
    """The kernel that trains and the reference are too far apart."""


def make_canary_step(
    loss: LossFn, reference_loss: LossFn, accumulate_steps: int, gather_dtype: str = "float32"
) -> Callable[[Any, Batch], Differences]:
    """The relative differences of loss and gradients on the first micro-batch, without dropout."""

    def compare(params: Any, batch: Batch) -> Differences:
        micro_batch = jax.tree.map(lambda x: x[0], split_batch(batch, accumulate_steps))
        sums, reference_sums = (
            summed_over_batch(partial(summed_gradients, of), gather_dtype)
            for of in (loss, reference_loss)
        )
        grads, ((total, count), _) = sums(params, micro_batch, None)
        expected_grads, ((expected, _), _) = reference_sums(params, micro_batch, None)
        apart = jax.tree.map(jnp.subtract, grads, expected_grads)
        return {
            "loss": total / count,
            "reference_loss": expected / count,
            "loss_difference": jnp.abs(total - expected) / jnp.abs(expected),
            "gradient_difference": optax.tree.norm(apart) / optax.tree.norm(expected_grads),
        }

    return compare


def is_within(differences: Mapping[str, float], bound: float) -> bool:
    """Whether both differences are numbers up to the bound."""
    return all(differences[name] <= bound for name in ("loss_difference", "gradient_difference"))


def too_far_apart(
    step: int, differences: Mapping[str, float], bound: float, kernels: Sequence[str]
) -> Unreliable:
    """The error of differences that are not within the bound."""
    named = " + ".join(dict.fromkeys(kernels))
    others = " or ".join(repr(name) for name in ("blocked", "reference") if name not in kernels)
    loss, gradient = differences["loss_difference"], differences["gradient_difference"]
    return Unreliable(
        f"step {step}: the kernel that trains ({named}) and the reference are apart by {loss:.3g} "
        f"in the loss ({differences['loss']:.6g} and {differences['reference_loss']:.6g}) and by "
        f"{gradient:.3g} in the gradients, above CanaryConfig.bound = {bound:g}: check the "
        f"hardware, or set ModelConfig.attention_implementation to {others}."
    )
