"""Updates that are not finite, or whose gradients spike, stop a run or are skipped and counted."""

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import Program, make_program
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.train_step import TrainState
from tests import conftest
from tests.evals.stops import Stops
from tests.faults.runs import arrays
from tests.run_lines import measured
from tests.tiny_runs import train

SKIP = "UpdatePolicy.nonfinite='skip'"
SPIKES = ("UpdatePolicy.spike_factor=20.0", "UpdatePolicy.spike_memory=3")
FACTORS: dict[int, float] = {}  # of the losses of training rows, by the row's number
PROGRAMS: dict[str, Program] = {}


@pytest.fixture(autouse=True)
def factors_known_as_it_runs(
    monkeypatch: pytest.MonkeyPatch, programs_once: None
) -> Iterator[None]:
    """A program asks for the factors as it runs, so that tests of one policy share it."""
    monkeypatch.setattr(conftest, "LAID_OUT", PROGRAMS)
    plain, factor = NextToken.loss, jax.ShapeDtypeStruct((), jnp.float32)

    def loss(self: NextToken, model: Any) -> Any:
        of_batch = plain(self, model)

        def scaled(params: Any, batch: Any, key: Any) -> Any:
            (total, count), metrics = of_batch(params, batch, key)
            if key is None:  # of an evaluation
                return (total, count), metrics
            scale = jax.pure_callback(factor_of, factor, batch["row"])
            return (total * scale, count), {n: (x * scale, m) for n, (x, m) in metrics.items()}

        return scaled

    monkeypatch.setattr(NextToken, "loss", loss)
    yield
    FACTORS.clear()


def factor_of(row_B: np.ndarray) -> np.float32:
    """That of a micro-batch: its spoiled row's, where it has one."""
    found = [FACTORS[int(row)] for row in np.asarray(row_B) if int(row) in FACTORS]
    return np.float32(found[0] if found else 1.0)


def spoil_a_row_of_each(gin_file: Path, steps: Sequence[int], factor: float) -> None:
    """The loss of the first row of the batch of each step is that many times as large."""
    program = make_program(read_experiment([str(gin_file)], []))
    stream = program.task.train_stream(BatchShard(8), None)
    batches = [next(stream) for _ in range(max(steps))]
    stream.close()
    FACTORS.update({int(batches[step - 1]["row"][0]): factor for step in steps})


def steps_of(gin: Path, count: int, *bindings: str) -> tuple[list[TrainState], list[Any]]:
    """The states before and after so many steps, and their outputs."""
    program = make_program(read_experiment([str(gin)], bindings))
    stream = program.task.train_stream(BatchShard(8), None)
    with jax.set_mesh(program.mesh):
        state = program.init()
        states, outputs = [jax.device_get(state)], []
        for _ in range(count):
            state, output = program.train_step(state, program.to_devices(next(stream)))
            states.append(jax.device_get(state))
            outputs.append(jax.device_get(output))
    stream.close()
    return states, outputs


def assert_same_bits(one: Any, other: Any) -> None:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


@pytest.mark.parametrize(("factor", "policy"), [(math.nan, [SKIP]), (1e4, SPIKES)])
def test_a_skipped_update_leaves_all_but_the_step_and_the_count(
    factor: float, policy: Sequence[str], tiny_gin: Path
) -> None:
    """One row is spoiled, so one of the micro-batches."""
    spoil_a_row_of_each(tiny_gin, [5], factor)
    states, outputs = steps_of(tiny_gin, 6, "TrainConfig.accumulate_steps=4", *policy)
    before, after = states[4], states[5]
    assert_same_bits(after.params, before.params)
    assert_same_bits(after.opt_state.optimizer, before.opt_state.optimizer)
    assert (int(before.step), int(after.step)) == (4, 5)
    assert [int(state.opt_state.guard.skipped) for state in states] == [0, 0, 0, 0, 0, 1, 1]
    assert [int(state.opt_state.guard.made) for state in states] == [0, 1, 2, 3, 4, 4, 5]
    assert after.opt_state.guard.mean_norm == before.opt_state.guard.mean_norm
    assert all(pair == (0, 0) for pair in outputs[4].metrics.values())
    assert not np.array_equal(states[6].params["embed"]["table"], after.params["embed"]["table"])
    norms = [float(outputs[i].verdict.gradient_norm) for i in (0, 1, 2, 3, 5)]
    assert not outputs[5].verdict.is_skipped and all(map(math.isfinite, norms))


def test_parameters_that_an_update_would_spoil_are_kept(tiny_gin: Path) -> None:
    """The loss and its gradients are finite until the parameters are not."""
    hot = ("OptimizerConfig.learning_rate=1e29", "OptimizerConfig.weight_decay=0")
    hot += ("ModelConfig.base_width=2147483647", "ModelConfig.base_head_dim=1")
    states, outputs = steps_of(tiny_gin, 3, SKIP, *hot)
    assert [bool(output.verdict.is_skipped) for output in outputs] == [False, True, True]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(states[-1].params))
    assert math.isfinite(float(outputs[1].objective[0]))


def test_a_spike_before_the_mean_has_seen_enough_is_none(tiny_gin: Path) -> None:
    spoil_a_row_of_each(tiny_gin, [3], 1e4)
    states, outputs = steps_of(tiny_gin, 3, *SPIKES)
    assert not outputs[2].verdict.is_skipped
    norms = [float(output.verdict.gradient_norm) for output in outputs]
    assert norms[2] > 1e3 * norms[1]
    assert states[-1].opt_state.guard.mean_norm == pytest.approx(np.mean(norms), rel=1e-6)


def test_skipped_updates_are_logged_told_and_left_out_of_the_means(
    tiny_gin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_a_row_of_each(tiny_gin, [5, 9], math.nan)
    workdir = tmp_path / "run"
    assert train(tiny_gin, workdir, SKIP, "LogConfig.every=2") == 0
    out = capsys.readouterr().out
    assert "step 5: loss nan" in out and "The update is skipped, number 1 of this run." in out
    lines = measured(workdir, "optim/")
    counts = [(line["step"], line["optim/skipped_updates"]) for line in lines]
    assert counts == [(2, 0), (4, 0), (6, 1), (8, 1), (10, 2), (12, 2)]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    schedule = make_program(read_experiment([str(tiny_gin)], [])).schedule
    rates = [line["optim/learning_rate"] for line in lines]
    assert rates == [float(schedule(update)) for update in (1, 3, 4, 6, 7, 9)]
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["train"]["skipped_updates"] == 2


def test_a_run_resumed_after_a_skip_equals_one_never_stopped(
    tiny_gin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes between two skips, inside a window of the log."""
    spoil_a_row_of_each(tiny_gin, [4, 6], 1e4)
    often = (*SPIKES, "TrainConfig.eval_every=100")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(tiny_gin, whole, *often) == 0
    with monkeypatch.context() as patch:
        patch.setattr("hyla_lm.run.run.PreemptionGuard", lambda _: Stops(5))
        assert train(tiny_gin, stopped, *often) == EXIT_STATUS
    assert train(tiny_gin, stopped, *often) == 0
    assert measured(stopped) == measured(whole)
    assert measured(whole, "optim/")[-1]["optim/skipped_updates"] == 2
    assert arrays(stopped, 12) == arrays(whole, 12)


@pytest.mark.parametrize(
    ("bindings", "status", "sentence"),
    [
        ([SKIP, "UpdatePolicy.skip_limit=2"], 0, ""),
        ([SKIP, "UpdatePolicy.skip_limit=1"], 2, "2 updates were skipped, above UpdatePolicy.skip"),
        ([], 2, "step 6: loss nan, gradient norm nan on rows ["),
    ],
)
def test_above_the_limit_and_by_default_the_run_stops(
    bindings: list[str],
    status: int,
    sentence: str,
    tiny_gin: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    spoil_a_row_of_each(tiny_gin, [6, 7], math.nan)
    assert train(tiny_gin, tmp_path / "run", *bindings) == status
    assert sentence in capsys.readouterr().err


def test_a_policy_cannot_be_put_on_or_off_on_the_way_but_may_change(
    tiny_gin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = "TrainConfig.steps=4"
    assert train(tiny_gin, tmp_path / "run", short, SKIP) == 0
    assert train(tiny_gin, tmp_path / "run") == 2
    assert "UpdatePolicy (nonfinite = 'skip' or a spike_factor) = " in capsys.readouterr().err
    assert train(tiny_gin, tmp_path / "run", *SPIKES, "UpdatePolicy.skip_limit=3") == 0
