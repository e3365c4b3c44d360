"""Norms by layer, against numpy, and how a window averages them."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.config.experiment import LogConfig
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.diagnostics.norms import KINDS, Norms, norms_of
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import BatchShard, path_of
from hyla_lm.run.program import Program, make_program
from hyla_lm.train_step import StepOutput, TrainState
from tests.model.small_model import VOCABULARY, parameters, small, tokens
from tests.tiny_runs import write_gin


def norms_in_numpy(params: dict, pattern: str) -> dict[str, float]:
    """The norm of each layer, by the paths of its parameters; '' is the whole."""
    squares: dict[str, float] = {"": 0.0}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        top, block, *_ = path_of(path).split("/")
        rows = [np.asarray(leaf, np.float64)]
        names = [f"/{block if top == 'blocks' else top}"]
        if pattern == "scanned" and top == "blocks":
            rows = list(rows[0])
            names = [f"/block_{2 * repeat + int(block[-1])}" for repeat in range(len(rows))]
        for name, row in zip(names, rows, strict=True):
            squares[name] = squares.get(name, 0.0) + float(np.sum(row**2))
            squares[""] += float(np.sum(row**2))
    return {name: square**0.5 for name, square in squares.items()}


@pytest.mark.parametrize("pattern", ["listed", "scanned"])
def test_norms_are_those_of_each_block_and_of_what_is_beside_them(pattern: str) -> None:
    scanned = pattern == "scanned"
    config = small(
        num_layers=4, attention=("hyla", "softmax"), scan_layers=scanned, tie_embeddings=False
    )
    params = parameters(Decoder(config, Tokens(VOCABULARY)), tokens())

    @jax.jit
    def norms(params: Any) -> Norms:
        doubled = jax.tree.map(lambda x: 2 * x, params)
        tripled = jax.tree.map(lambda x: 3 * x, params)
        return norms_of(params, doubled, tripled, scanned)

    found = norms(params).metrics()
    expected = norms_in_numpy(params, pattern)
    assert set(expected) == {
        *("", "/embed", "/final_norm", "/head", "/block_0", "/block_1", "/block_2", "/block_3")
    }
    for factor, kind in enumerate(KINDS, 1):
        for name, norm in expected.items():
            total, count = found.pop(f"{kind}{name}")
            assert count == 1 and total == pytest.approx(factor * norm, rel=1e-5)
    assert not found


@pytest.fixture(scope="module")
def programs(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Program]:
    path = write_gin(tmp_path_factory.mktemp("norms"), tiny_rows)
    clipped = ["OptimizerConfig.warmup_steps = 0", "OptimizerConfig.clip_norm = 1e-3"]
    experiment = read_experiment([str(path)], [*clipped, "ModelConfig.num_layers = 1"])
    return {on: make_program(replace(experiment, log=LogConfig(layers=on))) for on in (False, True)}


def step(program: Program) -> tuple[dict, TrainState, StepOutput]:
    """Parameters before a step, and what it gives."""
    shard = BatchShard(program.experiment.train.batch_size)
    batch = next(program.task.train_stream(shard, None))
    with jax.set_mesh(program.mesh):
        state = program.init()
        before = jax.device_get(state.params)
        return before, *program.train_step(state, program.to_devices(batch))


def test_the_step_measures_what_it_computed(programs: dict[bool, Program]) -> None:
    assert step(programs[False])[2].norms is None
    before, state, output = step(programs[True])
    norms = {name: total for name, (total, _) in output.norms.metrics().items()}
    updates = jax.tree.map(lambda new, old: np.asarray(new) - old, state.params, before)
    for name, norm in norms_in_numpy(updates, "listed").items():
        assert norms[f"update_norm{name}"] == pytest.approx(norm, rel=1e-3)
    for name, norm in norms_in_numpy(state.params, "listed").items():
        assert norms[f"parameter_norm{name}"] == pytest.approx(norm, rel=1e-5)
    total = float(output.metrics["gradient_norm"][0])
    assert total > 1e-2, "clipping would show"
    assert norms["gradient_norm"] == pytest.approx(total, rel=1e-5)
    squared = sum(float(norm) ** 2 for norm in output.gradient_norms.values())
    assert norms["gradient_norm"] == pytest.approx(squared**0.5, rel=1e-5)
