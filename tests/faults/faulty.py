"""Faults that tests put into a run: rows whose loss goes wrong."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from hyla_lm.cli.main import main
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import make_program
from hyla_lm.tasks.language_model import NextToken


def spoil_rows(patch: pytest.MonkeyPatch, rows: Sequence[int], factor: float) -> None:
    """The loss of a micro-batch with one of these training rows is that many times as large."""

    def scale(row_B: jax.Array) -> jax.Array:
        return jnp.where(jnp.isin(row_B, jnp.array(rows)).any(), factor, 1.0)

    scale_training_loss(patch, scale)


def scale_training_loss(
    patch: pytest.MonkeyPatch, scale_of: Callable[[jax.Array], jax.Array]
) -> None:
    """The loss of a micro-batch is as many times as large as its rows' numbers say."""
    plain = NextToken.loss

    def loss(self: NextToken, model: Any) -> Any:
        of_batch = plain(self, model)

        def scaled(params: Any, batch: Any, key: Any) -> Any:
            (total, count), metrics = of_batch(params, batch, key)
            if key is None:
                return (total, count), metrics
            scale = scale_of(batch["row"])
            return (total * scale, count), {n: (x * scale, m) for n, (x, m) in metrics.items()}

        return scaled

    patch.setattr(NextToken, "loss", loss)


def a_row_of_each(gin_file: Path, steps: Sequence[int]) -> list[int]:
    """The first row of the batch that each of these steps trains on."""
    program = make_program(read_experiment([str(gin_file)], []))
    stream = program.task.train_stream(BatchShard(8), None)
    batches = [next(stream) for _ in range(max(steps))]
    stream.close()
    return [int(batches[step - 1]["row"][0]) for step in steps]


def train(gin_file: Path, workdir: Path, *bindings: str) -> int:
    more = [f"--gin.{binding}" for binding in bindings]
    return main(["train", f"--gin_file={gin_file}", f"--workdir={workdir}", *more])
