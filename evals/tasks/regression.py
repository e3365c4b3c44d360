"""Regression in context: a query after examples of a function, with R2 as in the paper."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from hyla_lm.evals.tasks.generated import GeneratedTask
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.tasks.protocol import Batch


class RegressionTask(GeneratedTask):
    """Examples are those of `in_context`."""

    described: ClassVar[tuple[str, str]] = ("mse", "r2")
    closing: ClassVar[Mapping[str, str]] = {"R2 of sequences": "r2", "pooled R2": "r2_pooled"}

    def score(
        self, output_BxTxO: jax.Array, batch: Batch, weight_B: jax.Array
    ) -> tuple[Pair, Metrics]:
        """Squared error and R2 of the query, which is the last token."""
        prediction_B = output_BxTxO[:, -1, 0]
        metrics = regression_metrics(prediction_B, batch["target"], batch["variance"], weight_B)
        return metrics["mse"], metrics

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """Adds `r2_pooled`, R2 over all queries; `r2` is the mean of the sequences' own R2."""
        shown = dict(means)
        spread = shown.pop("target_squared") - shown.pop("target") ** 2
        return {**shown, "r2_pooled": 1 - shown["mse"] / spread if spread > 0 else float("nan")}


def in_context(x_NxL: jax.Array, target_N: jax.Array) -> dict[str, jax.Array]:
    """The sequence of these points: `features` NxL+1, the `target` of the query, which is last.

    A token has inputs and target; the query's target is shown as 0. `variance` is of all targets.
    """
    return {
        "features": jnp.column_stack([x_NxL, target_N.at[-1].set(0)]),
        "target": target_N[-1],
        "variance": jnp.var(target_N),
    }


def regression_metrics(
    prediction_B: jax.Array, target_B: jax.Array, variance_B: jax.Array, weight_B: jax.Array
) -> Metrics:
    """Squared error and R2; the paper's R2 is the mean over sequences of 1 - error / variance."""
    error_B = jnp.square(prediction_B - target_B)
    count = jnp.sum(weight_B)

    def summed(x_B: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sum(weight_B * x_B), count

    return {
        "mse": summed(error_B),
        "r2": summed(1 - error_B / variance_B),
        "target": summed(target_B),
        "target_squared": summed(jnp.square(target_B)),
    }
