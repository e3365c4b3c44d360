"""Trains many runs of one generated task on one device: vmapped, many steps a dispatch.

Every run stays an ordinary run: its folder holds the configuration, metrics, checkpoints and
summary that `hyla-lm train` writes, and that command goes on from its checkpoints. Runs may only
differ in seed, split, learning rate, weight decay and warm-up, which the program takes as numbers.

Dimensions: R runs, B batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.config.declare import as_dict
from hyla_lm.errors import UserError
from hyla_lm.evals.populations.steps import Alike, Numbers, generated_task, steps_of
from hyla_lm.metrics import Metrics
from hyla_lm.run.program import Program
from hyla_lm.train_step import Sums, TrainState


class Population:
    """The compiled steps of R runs; states and metrics have a leading axis R.

    Raises UserError if runs differ in more than Numbers, or ask for what `check_updates` refuses.
    """

    def __init__(self, programs: Sequence[Program]):
        check_alike(programs)
        check_updates(programs[0])
        self.program = programs[0]
        self.task = generated_task(self.program)
        self.numbers: Numbers = jax.tree.map(_stack, *map(_numbers_of, programs))
        self.steps = steps_of(Alike(_settings(self.program), self.program))

    def compile(self, windows: Iterable[int], examples: Iterable[int]) -> None:
        """Compiles `advance` for these numbers of steps, `evaluate` for these of examples."""
        state = self.init()
        for steps in windows:
            self.steps.advance.lower(state, self.numbers, steps).compile()
        for name, count in product(self.task.evaluation_names(), examples):
            self.steps.evaluate.lower(state.params, self.numbers, name, count).compile()

    def init(self) -> TrainState:
        """The states before the first update."""
        return self.steps.init(self.numbers)

    def advance(self, state: TrainState, steps: int) -> tuple[TrainState, Sums]:
        """The states after `steps` updates in one dispatch; objective and metrics summed."""
        return self.steps.advance(state, self.numbers, steps)

    def evaluate(self, params: Any, name: str, examples: int) -> Metrics:
        """Metrics summed over the first `examples` of an evaluation set."""
        return self.steps.evaluate(params, self.numbers, name, examples)


def check_alike(programs: Sequence[Program]) -> None:
    """Raises UserError if runs differ in more than Numbers."""
    first, sizes = _fixed_settings(programs[0]), _table_shapes(programs[0])
    for program in programs[1:]:
        for name, value in _fixed_settings(program).items():
            if value != first[name]:
                raise UserError(
                    f"runs that train together differ in {name}: {first[name]!r} and {value!r}; "
                    "train them apart."
                )
        if _table_shapes(program) != sizes:
            raise UserError(
                "runs that train together have splits of different sizes "
                f"({sizes} and {_table_shapes(program)}): train them apart."
            )


def _settings(program: Program) -> str:
    """All that decides what the steps of a population compute, but for its numbers."""
    return repr((type(program.task).__name__, _fixed_settings(program), _table_shapes(program)))


def check_updates(program: Program) -> None:
    """Raises UserError for settings of the trainer's that a population does not follow."""
    e = program.experiment
    asked = {
        "UpdatePolicy": e.updates.is_on,
        "CanaryConfig.every": e.canary.every > 0,
        "WarmStart.run": bool(e.warm_start.run),
        "Branch.run": bool(e.branch.run),
        "TrainConfig.profile": e.train.profile is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise UserError(
                f"{name} is set, which runs that train together do not follow: "
                "leave it out or train each with hyla-lm train."
            )


def _fixed_settings(program: Program) -> Mapping[str, Any]:
    e = program.experiment
    same = replace(e.optimizer, learning_rate=0.0, weight_decay=0.0, warmup_steps=0)
    parts = {
        "TrainConfig": as_dict(replace(e.train, seed=0)),
        "ModelConfig": as_dict(e.model),
        "OptimizerConfig": as_dict(same),
        "CheckpointConfig": as_dict(e.checkpoint),
        "LogConfig": as_dict(e.log),
    }
    parts["TrainConfig"]["task"]["seed"] = 0
    return {
        f"{name}.{field}": value for name, part in parts.items() for field, value in part.items()
    }


def _table_shapes(program: Program) -> dict[str, tuple[int, ...]]:
    return {name: table.shape for name, table in generated_task(program).tables.items()}


def _numbers_of(program: Program) -> Numbers:
    e, task = program.experiment, generated_task(program)
    return Numbers(
        jnp.int32(e.train.seed),
        jnp.float32(e.optimizer.learning_rate),
        jnp.float32(e.optimizer.weight_decay),
        jnp.int32(e.optimizer.warmup_steps),
        {"train": task.train_key(e.train.seed)}
        | {s: task.evaluation_key(s) for s in task.evaluation_names()},
        {name: jnp.asarray(table) for name, table in task.tables.items()},
    )


def _stack(*leaves: jax.Array) -> jax.Array:
    return jnp.stack(leaves)


def of_run(stacked: Any, index: int) -> Any:
    """One run's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)
