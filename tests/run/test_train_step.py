"""Accumulation equals the full batch, decay spares biases, and randomness follows the step."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run import program as programs
from hyla_lm.run.program import check_memory, make_program
from hyla_lm.train_step import TrainState, make_train_step

# The same float32 sums in another order; Adam divides by a root near epsilon only at exact zeros.
ACCUMULATION = 1e-6


def experiment_of(gin_file: Path, *bindings: str) -> Experiment:
    return read_experiment([str(gin_file)], bindings)


def step_once(experiment: Experiment, uneven: bool):
    program = make_program(experiment)
    train = experiment.train
    batch = dict(next(program.task.train_stream(BatchShard(train.batch_size), None)))
    if uneven:
        bos = batch["tokens"][0, 0] * 0 + 2
        for row in range(len(batch["tokens"])):
            batch["tokens"][row, row + 2 :] = bos
    with jax.set_mesh(program.mesh):
        return program.train_step(program.init(), program.to_devices(batch))


def test_micro_batches_of_unequal_token_counts_equal_the_full_batch(tiny_gin: Path) -> None:
    sgd_like = ("OptimizerConfig.epsilon = 1.0", "OptimizerConfig.warmup_steps = 0")
    whole = experiment_of(tiny_gin, *sgd_like)
    parts = replace(whole, train=replace(whole.train, accumulate_steps=4))
    (state, output), (state_4, output_4) = step_once(whole, True), step_once(parts, True)
    assert float(output.objective[1]) == float(output_4.objective[1])
    np.testing.assert_allclose(
        float(output.objective[0]),
        float(output_4.objective[0]),
        rtol=ACCUMULATION,
    )
    for name, norm in output.gradient_norms.items():
        np.testing.assert_allclose(norm, output_4.gradient_norms[name], rtol=1e-5, atol=1e-6)
    for one, four in zip(jax.tree.leaves(state), jax.tree.leaves(state_4), strict=True):
        np.testing.assert_allclose(one, four, rtol=ACCUMULATION, atol=ACCUMULATION)


def test_the_seed_decides_the_first_state(tiny_gin: Path) -> None:
    experiment = experiment_of(tiny_gin)
    again = make_program(experiment).init()
    other = make_program(replace(experiment, train=replace(experiment.train, seed=1))).init()
    same = make_program(experiment).init()
    leaves = [jax.tree.leaves(state.params) for state in (again, same, other)]
    assert all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(leaves[0], leaves[2], strict=True))


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_dropout_is_drawn_anew_each_step(tiny_gin: Path, rate: float) -> None:
    bindings = (f"ModelConfig.attention_dropout = {rate}", "OptimizerConfig.learning_rate = 0.0")
    program = make_program(experiment_of(tiny_gin, *bindings))
    batch = program.to_devices(next(program.task.train_stream(BatchShard(8), None)))
    with jax.set_mesh(program.mesh):
        state, first = program.train_step(program.init(), batch)
        _, second = program.train_step(state, batch)
    losses = [float(output.metrics["loss_nats"][0]) for output in (first, second)]
    assert (losses[0] == losses[1]) == (rate == 0)


def test_each_micro_batch_draws_its_own_dropout() -> None:
    def loss(params: Any, batch: Any, key: jax.Array) -> Any:
        drawn = jax.random.uniform(key) + params
        return (drawn, jnp.ones(())), {"squared": (drawn**2, jnp.ones(()))}

    optimizer = optax.sgd(0.0)
    state = TrainState(jnp.int32(0), jnp.zeros(()), optimizer.init(jnp.zeros(())))
    _, output = make_train_step(loss, optimizer, 2, seed=0)(state, {"row": jnp.arange(2)})
    mean, squared = output.objective[0] / 2, output.metrics["squared"][0] / 2
    assert squared - mean**2 > 1e-3


def test_more_than_a_device_holds_is_refused_with_figures(
    tiny_gin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state, the input of each block of 8 rows of 16 tokens of 16 numbers, and the batch."""
    program = make_program(experiment_of(tiny_gin, "ModelConfig.num_layers = 2"))
    needed = sum(leaf.nbytes for leaf in jax.tree.leaves(program.init())) + 2 * 8 * 16 * 16 * 4
    needed += 8 * (17 + 2) * 4
    monkeypatch.setattr(programs, "memory_of", lambda device: needed)
    check_memory(program)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_state.params))
    with pytest.raises(UserError, match=f"{2 * parameters:,} parameters .* of 8 rows"):
        check_memory(program, runs=2)
    monkeypatch.setattr(programs, "memory_of", lambda device: needed - 1)
    with pytest.raises(UserError, match="needs at least 0.0 GB on each device"):
        check_memory(program)
