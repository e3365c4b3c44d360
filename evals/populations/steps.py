"""The steps of runs that train together, as compiled functions of the numbers in which they differ.

Dimensions: R runs, B batch.
"""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.generated import GeneratedTask
from hyla_lm.metrics import Metrics
from hyla_lm.model.width import rate_of
from hyla_lm.optim import make_optimizer, schedule_of
from hyla_lm.run.program import Program, init_params
from hyla_lm.tasks.code_loss import with_code_loss
from hyla_lm.tasks.protocol import Batch
from hyla_lm.train_step import Sums, TrainState, init_state, make_train_step

KEPT = 4  # of the newest settings


class Numbers(NamedTuple):
    """The numbers in which runs differ, with a leading axis R. Keys and tables are by set."""

    seed: jax.Array
    learning_rate: jax.Array
    weight_decay: jax.Array
    warmup_steps: jax.Array
    keys: dict[str, jax.Array]
    tables: dict[str, jax.Array]


@dataclass(frozen=True)
class Alike:
    """A program that equals every other of the same settings, but for its numbers."""

    settings: str
    program: Program = field(compare=False)


class Steps:
    """Functions of R runs: states, parameters and metrics have a leading axis R."""

    def __init__(self, program: Program):
        self.program, self.task = program, generated_task(program)
        self.init = jax.jit(jax.vmap(self._init_one))
        self.advance = jax.jit(
            lambda state, numbers, steps: jax.vmap(partial(self._advance_one, steps))(
                state, numbers
            ),
            static_argnums=2,
            donate_argnums=0,
        )
        self.evaluate = jax.jit(
            lambda params, numbers, name, examples: jax.vmap(
                partial(self._evaluate_one, name, examples)
            )(params, numbers),
            static_argnums=(2, 3),
        )

    def _init_one(self, numbers: Numbers) -> TrainState:
        return init_state(
            partial(init_params, self.program.model), self._optimizer(numbers), numbers.seed
        )

    def _advance_one(
        self, steps: int, state: TrainState, numbers: Numbers
    ) -> tuple[TrainState, Sums]:
        train = self.program.experiment.train
        step = make_train_step(
            with_code_loss(train.code_loss, self.task, self.program.model),
            self._optimizer(numbers),
            train.accumulate_steps,
            numbers.seed,
        )

        def one(state: TrainState, _: None) -> tuple[TrainState, Sums]:
            row_B = state.step * train.batch_size + jnp.arange(train.batch_size)
            batch = self.task.draw(numbers.keys["train"], row_B, numbers.tables["train"])
            state, output = step(state, batch)
            return state, (output.objective, output.metrics)

        state, sums = jax.lax.scan(one, state, length=steps)
        return state, jax.tree.map(lambda sums: jnp.sum(sums, axis=0), sums)

    def _evaluate_one(self, name: str, examples: int, params: Any, numbers: Numbers) -> Metrics:
        size = self.program.experiment.train.batch_size
        loss = self.task.loss(self.program.model)

        def of_batch(start: jax.Array) -> Metrics:
            row_B = start + jnp.arange(size)
            row_B = jnp.where(row_B < examples, row_B, -1)
            key, table = numbers.keys[name], numbers.tables[name]
            batch: Batch = self.task.draw_for_evaluation(key, row_B, table)
            return loss(params, batch, None)[1]

        metrics = jax.lax.map(of_batch, jnp.arange(0, examples, size))
        return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), metrics)

    def _optimizer(self, numbers: Numbers) -> Any:
        e = self.program.experiment
        config, steps = e.optimizer, e.train.steps
        schedule = schedule_of(config, steps, numbers.learning_rate, numbers.warmup_steps)
        return make_optimizer(
            config, schedule, weight_decay=numbers.weight_decay, rate_of=rate_of(e.model)
        )


@lru_cache(maxsize=KEPT)
def steps_of(alike: Alike) -> Steps:
    """The steps of such a program: populations of the same settings trace and compile them once."""
    return Steps(alike.program)


def generated_task(program: Program) -> GeneratedTask:
    """The program's task; raises UserError unless it generates its examples."""
    if not isinstance(program.task, GeneratedTask):
        raise UserError(
            f"TrainConfig.task = @{type(program.experiment.train.task).__name__}() does not draw "
            "its examples on the device: train it with hyla-lm train."
        )
    return program.task
