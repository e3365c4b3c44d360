"""Hyperteacher: in-context regression of networks that a linear hypernetwork makes.

A teacher has M modules. A task combines K of them: its network has the first layer W(z) = sum over
k of z_k Theta_k, a ReLU and a readout that never changes. The model sees N - 1 inputs with their
targets and predicts that of the query. Training draws some combinations of modules, and every
module is in one of them; held-out combinations test composition, as in Schug et al., "Discovering
modular solutions that generalize compositionally" (2024).

Each seed s has another teacher: its module m has the number s M + m, which determines Theta. So a
table of combinations determines the teacher too, and runs of several seeds train together.

Dimensions: B batch, N examples of a task with the query last, L inputs, H hidden units, K modules
of a task, C combinations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.declare import configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.draws import below, fraction, random_bits
from hyla_lm.evals.tasks.generated import GeneratedConfig
from hyla_lm.evals.tasks.regression import RegressionTask, in_context
from hyla_lm.evals.tasks.splits import combined, make_split
from hyla_lm.model.config import Features

VARIANCE_OF_RELU = 1 / 2 - 1 / (2 * np.pi)  # of a standard normal number's positive part


@configurable
@dataclass(frozen=True)
class Hyperteacher(GeneratedConfig):
    """In-context regression of combined teacher modules, split by their combinations."""

    ranked_by: ClassVar[str] = "validation/held_out_r2"

    held_out_fraction: float = setting(0.25, "share of module combinations held out of training")
    seed: int = setting(0, "seed of teacher, split and evaluation sets", minimum=0, maximum=2**21)
    num_modules: int = setting(8, "M, modules of the teacher", minimum=2, maximum=1000)
    num_combined: int = setting(2, "K, modules of a task", minimum=1)
    input_dim: int = setting(4, "L, inputs", minimum=1, maximum=256)
    hidden_dim: int = setting(8, "H, hidden units of a task's network", minimum=1, maximum=256)
    sequence_length: int = setting(32, "N, examples of a task, the query included", minimum=2)

    def check(self) -> None:
        if self.num_combined > self.num_modules:
            raise UserError(
                f"Hyperteacher.num_combined = {self.num_combined} is more than "
                f"Hyperteacher.num_modules = {self.num_modules}: change one."
            )

    def prepare_task(self, batch_size: int) -> "HyperteacherTask":
        numbers = range(self.seed * self.num_modules, (self.seed + 1) * self.num_modules)
        settings = "Hyperteacher.num_modules and num_combined"
        modules_CxK = combined(numbers, self.num_combined, settings)
        return HyperteacherTask(self, make_split(modules_CxK, self))


@dataclass(frozen=True)
class HyperteacherTask(RegressionTask):
    """The prepared task; see hyla_lm.tasks.protocol.Task."""

    config: Hyperteacher
    tables: Mapping[str, np.ndarray]

    @cached_property
    def io(self) -> Features:
        return Features(self.config.input_dim + 1, 1, answers=1)

    @property
    def sequence_length(self) -> int:
        return self.config.sequence_length

    def summary(self) -> dict[str, str]:
        c = self.config
        return {
            "data": f"hyperteacher, {c.num_combined} of {c.num_modules} modules of "
            f"{c.hidden_dim} x {c.input_dim}, {c.sequence_length} examples",
            "split": self.split_summary("combinations"),
        }

    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        c = self.config
        shapes = (), (c.num_combined,), (c.sequence_length, c.input_dim)
        choice, z_bits, x_bits = random_bits(key, *shapes)
        modules_K = jnp.asarray(combinations_CxM)[below(choice, len(combinations_CxM))]
        z_K = 0.5 + fraction(z_bits)
        x_NxL = of_variance_one(x_bits)
        theta_KxHxL = jax.vmap(lambda m: module(m, c.hidden_dim, c.input_dim))(modules_K)
        target_N = network(x_NxL, theta_KxHxL, z_K / jnp.linalg.norm(z_K))
        return {**in_context(x_NxL, target_N), "modules": modules_K, "z": z_K}


def module(number: jax.Array, hidden_dim: int, input_dim: int) -> jax.Array:
    """Theta, HxL, of a module's number: independent uniform numbers of variance 1 / L."""
    bits = jax.random.bits(jax.random.key(number), (hidden_dim, input_dim))
    return of_variance_one(bits) / input_dim**0.5


def of_variance_one(bits: jax.Array) -> jax.Array:
    """Uniform numbers about 0."""
    return 12**0.5 * (fraction(bits) - 0.5)


def network(x_NxL: jax.Array, theta_KxHxL: jax.Array, z_K: jax.Array) -> jax.Array:
    """Targets, N: readout . relu(W(z) x). The readout's signs alternate.

    The variance over inputs of variance 1 is about 1 where z has a norm of 1. Products are in
    float32 on every device.
    """
    layer_LxH = jnp.einsum("k,khl->lh", z_K, theta_KxHxL, precision="highest")
    hidden_NxH = jax.nn.relu(jnp.matmul(x_NxL, layer_LxH, precision="highest"))
    hidden_dim = hidden_NxH.shape[1]
    readout_H = (hidden_dim * VARIANCE_OF_RELU) ** -0.5 * (-1.0) ** np.arange(hidden_dim)
    return jnp.matmul(hidden_NxH, readout_H, precision="highest")
