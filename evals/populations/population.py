"""Many runs of one generated task as one program: a train step of all of them, on one device.

Runs may only differ in seed, split, learning rate, weight decay and warm-up, which the program
takes as numbers. Their examples are drawn on the device, by number.

Dimensions: R runs, K steps of a dispatch, B batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from hyla_lm.config.declare import as_dict
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.generated import GeneratedTask
from hyla_lm.metrics import Metrics
from hyla_lm.model.width import rate_of
from hyla_lm.optim import make_optimizer, schedule_of
from hyla_lm.run.program import Program, init_params
from hyla_lm.tasks.protocol import Batch
from hyla_lm.train_step import StepOutput, TrainState, init_state, make_train_step

SETTINGS_AT_A_TIME = 4  # whose compiled functions are held


class Numbers(NamedTuple):
    """The numbers in which runs differ, with a leading axis R. Keys and tables are by set."""

    seed: jax.Array
    learning_rate: jax.Array
    weight_decay: jax.Array
    warmup_steps: jax.Array
    keys: dict[str, jax.Array]
    tables: dict[str, jax.Array]


class Population:
    """R runs as one: states, outputs and metrics have a leading axis R.

    `program` is that of the first run. Raises UserError if runs differ in more than Numbers, or
    have settings that a population does not follow.
    """

    def __init__(self, programs: Sequence[Program]):
        check_alike(programs)
        check_updates(programs[0])
        self.program, self.task = programs[0], generated_task(programs[0])
        self.numbers: Numbers = jax.tree.map(
            lambda *leaves: jnp.stack(leaves), *map(_numbers_of, programs)
        )
        self.functions = functions_of(self.program)

    def init(self) -> TrainState:
        """The states before the first update."""
        return self.functions.init(self.numbers)

    def train_step(self, state: TrainState, batch: Batch) -> tuple[TrainState, StepOutput]:
        """K updates of each run, on the examples with the batch's numbers, `row` KxB.

        Outputs have the axes RxK. One dispatch of many small steps takes about half the time of as
        many dispatches (make bench-evals).
        """
        return self.functions.train_steps(state, batch["row"], self.numbers)


class Functions:
    """The compiled functions of all populations of the same settings."""

    def __init__(self, program: Program):
        self._program, self._task = program, generated_task(program)
        self.init = jax.jit(jax.vmap(self._init))
        self.train_steps = jax.jit(jax.vmap(self._train_steps, (0, None, 0)), donate_argnums=0)
        self.evaluate = jax.jit(self._evaluate, static_argnums=(2, 3))

    def _init(self, numbers: Numbers) -> TrainState:
        init = partial(init_params, self._program.model)
        return init_state(init, self._optimizer(numbers), numbers.seed)

    def _train_steps(
        self, state: TrainState, row_KxB: jax.Array, numbers: Numbers
    ) -> tuple[TrainState, StepOutput]:
        train = self._program.experiment.train
        step = make_train_step(
            self._task.loss(self._program.model),
            self._optimizer(numbers),
            train.accumulate_steps,
            numbers.seed,
        )
        key, table = numbers.keys["train"], numbers.tables["train"]

        def on_rows(state: TrainState, row_B: jax.Array) -> tuple[TrainState, StepOutput]:
            return step(state, self._task.draw(key, row_B, table))

        return jax.lax.scan(on_rows, state, row_KxB)

    def _evaluate(self, params: Any, numbers: Numbers, name: str, examples: int) -> Metrics:
        """Metrics summed over the first `examples` of an evaluation set."""
        size = self._program.experiment.train.batch_size
        loss = self._task.loss(self._program.model)

        def of_run(params: Any, numbers: Numbers) -> Metrics:
            def of_batch(start: jax.Array) -> Metrics:
                row_B = start + jnp.arange(size)
                row_B = jnp.where(row_B < examples, row_B, -1)
                key, table = numbers.keys[name], numbers.tables[name]
                return loss(params, self._task.draw_for_evaluation(key, row_B, table), None)[1]

            metrics = jax.lax.map(of_batch, jnp.arange(0, examples, size))
            return jax.tree.map(lambda sums: jnp.sum(sums, axis=0), metrics)

        return jax.vmap(of_run)(params, numbers)

    def _optimizer(self, numbers: Numbers) -> optax.GradientTransformation:
        e = self._program.experiment
        config, steps = e.optimizer, e.train.steps
        schedule = schedule_of(config, steps, numbers.learning_rate, numbers.warmup_steps)
        return make_optimizer(
            config, schedule, weight_decay=numbers.weight_decay, rate_of=rate_of(e.model)
        )


def functions_of(program: Program) -> Functions:
    """Populations of the same settings trace and compile their functions once."""
    key = repr((type(program.task).__name__, _fixed_settings(program)))
    if key not in _FUNCTIONS:
        while len(_FUNCTIONS) >= SETTINGS_AT_A_TIME:
            del _FUNCTIONS[next(iter(_FUNCTIONS))]
        _FUNCTIONS[key] = Functions(program)
    return _FUNCTIONS[key]


_FUNCTIONS: dict[str, Functions] = {}


def generated_task(program: Program) -> GeneratedTask:
    """The program's task; raises UserError unless it generates its examples."""
    if not isinstance(program.task, GeneratedTask):
        raise UserError(
            f"TrainConfig.task = @{type(program.experiment.train.task).__name__}() does not draw "
            "its examples on the device: train it with hyla-lm train."
        )
    return program.task


def check_alike(programs: Sequence[Program]) -> None:
    """Raises UserError if runs differ in more than Numbers."""
    first = _fixed_settings(programs[0])
    for program in programs[1:]:
        for name, value in _fixed_settings(program).items():
            if value != first[name]:
                raise UserError(
                    f"runs that train together differ in {name}: {first[name]!r} and {value!r}; "
                    "train them separately."
                )


def check_updates(program: Program) -> None:
    """Raises UserError for settings of the trainer that a population does not follow."""
    e = program.experiment
    asked = {
        "UpdatePolicy": e.updates.is_on,
        "WarmStart.run": bool(e.warm_start.run),
        "TrainConfig.profile": e.train.profile is not None,
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise UserError(
                f"{name} is set, which runs that train together do not follow: "
                "leave it out or train each with hyla-lm train."
            )


def _fixed_settings(program: Program) -> Mapping[str, Any]:
    """All that decides what the functions of a population compute, but for its numbers."""
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
    tables = generated_task(program).tables
    return {
        f"{name}.{field}": value for name, part in parts.items() for field, value in part.items()
    } | {"the sizes of splits": {name: table.shape for name, table in tables.items()}}


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


def of_run(stacked: Any, index: int) -> Any:
    """One run's part of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[index], stacked)
