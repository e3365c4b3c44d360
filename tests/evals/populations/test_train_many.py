"""Runs that train together are the runs that hyla-lm train would have made one by one."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest

from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.cli.main import main
from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.evals.populations.population import Population
from hyla_lm.evals.populations.train_many import Member, open_member, train_many
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.lock import LOCK
from tests.evals.stops import Stops
from tests.run_lines import measured

pytestmark = pytest.mark.usefixtures("programs_once")
GIN = "gin/evals/fuzzy_logic_paper.gin"
SMALL = [
    "ModelConfig.num_layers=1",
    "ModelConfig.model_dim=8",
    "ModelConfig.num_heads=2",
    "ModelConfig.mlp_dim=16",
    "ModelConfig.use_bias=False",
    'ModelConfig.attention_implementation="reference"',
    "TrainConfig.steps=12",
    "TrainConfig.batch_size=8",
    "TrainConfig.eval_every=8",
    "LogConfig.every=4",
    "CheckpointConfig.every=6",
    "FuzzyLogic.evaluation_examples=20",
    "OptimizerConfig.warmup_steps=2",
]
RUNS = {
    "a": ["SEED=0", "OptimizerConfig.learning_rate=1e-3"],
    "b": [
        "SEED=1",
        "OptimizerConfig.learning_rate=3e-3",
        "OptimizerConfig.weight_decay=0.03",
        "OptimizerConfig.warmup_steps=4",
    ],
}
# Batched and single matrix products add in another order; over 12 updates 1e-6 was seen.
TOLERANCE = 1e-5


def members(home: Path, *extra: str) -> list[Member]:
    return [open_member([GIN], [*SMALL, *own, *extra], str(home / n)) for n, own in RUNS.items()]


def train_one(home: Path, name: str) -> None:
    bindings = [f"--gin.{binding}" for binding in [*SMALL, *RUNS[name]]]
    assert main(["train", f"--gin_file={GIN}", *bindings, f"--workdir={home / name}"]) == 0


def params(folder: Path, home: Path) -> list[np.ndarray]:
    """The parameters of the last step."""
    program = members(home)[0].program
    checkpoints = Checkpointer(folder / "checkpoints", 3)
    meta = checkpoints.meta(12)
    state, _ = checkpoints.restore(12, program.abstract_state, meta)
    checkpoints.close()
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which both runs have been trained together."""
    home = tmp_path_factory.mktemp("together")
    train_many(members(home))
    return home


@pytest.mark.parametrize("name", RUNS)
def test_each_run_is_the_run_of_its_own_command(home: Path, tmp_path: Path, name: str) -> None:
    train_one(tmp_path, name)
    for ours, alone in zip(measured(home / name), measured(tmp_path / name), strict=True):
        assert ours == pytest.approx(alone, rel=TOLERANCE, abs=TOLERANCE)
    assert (home / name / "config.gin").read_text() == (tmp_path / name / "config.gin").read_text()
    summaries = [json.loads((h / name / "summary.json").read_text()) for h in (home, tmp_path)]
    assert summaries[0]["validation"] == pytest.approx(summaries[1]["validation"], rel=TOLERANCE)
    pairs = zip(params(home / name, tmp_path), params(tmp_path / name, tmp_path), strict=True)
    for ours, alone in pairs:
        np.testing.assert_allclose(ours, alone, rtol=0, atol=TOLERANCE)


def test_populations_of_the_same_settings_are_compiled_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seeds and rates are numbers; sizes and what the functions do are settings."""
    first, again = (Population([member.program]) for member in members(tmp_path))
    batch = {"row": np.arange(16).reshape(2, 8)}
    first.train_step(first.init(), batch)
    with jax.log_compiles(), caplog.at_level("DEBUG", logger="jax"):
        again.train_step(again.init(), batch)
    assert not [r for r in caplog.records if "XLA compilation" in r.getMessage()]
    for setting in ("ModelConfig.mlp_dim=8", "TrainConfig.batch_size=4", "FuzzyLogic.seed=1"):
        changed = Population([members(tmp_path, setting)[0].program])
        assert (changed.functions is again.functions) == (setting == "FuzzyLogic.seed=1"), setting


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in which both runs were interrupted inside a window of logged steps."""
    with monkeypatch.context() as patch:
        patch.setattr("hyla_lm.evals.populations.train_many.PreemptionGuard", lambda _: Stops(3))
        with pytest.raises(Preempted, match="step 6"):
            train_many(members(tmp_path))
    yield tmp_path


def test_a_stopped_population_goes_on_to_the_last_bit(home: Path, stopped: Path) -> None:
    train_many(members(stopped))
    for name in RUNS:
        assert measured(stopped / name) == measured(home / name)
        pairs = zip(params(stopped / name, home), params(home / name, home), strict=True)
        assert all(np.array_equal(ours, whole) for ours, whole in pairs)


def test_a_run_goes_on_by_its_own_command_and_again_with_those_of_an_earlier_step(
    home: Path, stopped: Path
) -> None:
    train_one(stopped, "b")
    for ours, whole in zip(measured(stopped / "b"), measured(home / "b"), strict=True):
        assert ours == pytest.approx(whole, rel=TOLERANCE, abs=TOLERANCE)
    train_many(members(stopped))
    assert measured(stopped / "b") == measured(home / "b")


def test_a_run_that_diverges_leaves_the_others_alone(home: Path, tmp_path: Path) -> None:
    hot = "OptimizerConfig.learning_rate=1e29", "OptimizerConfig.weight_decay=0"
    wild = [*SMALL, *RUNS["b"], *hot]
    both = [
        open_member([GIN], [*SMALL, *RUNS["a"]], str(tmp_path / "a")),
        open_member([GIN], wild, str(tmp_path / "wild")),
    ]
    summaries = train_many(both)
    assert measured(tmp_path / "a") == measured(home / "a")
    assert summaries[0]["diverged_at"] is None
    assert summaries[1]["diverged_at"] in (2, 3)
    assert summaries[1]["validation"] == {}


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ((), ("ModelConfig.mlp_dim=32",), "ModelConfig.mlp_dim: 16 and 32"),
        ((), ("FuzzyLogic.held_out_fraction=0.5",), "held_out_fraction"),
        (("UpdatePolicy.nonfinite='skip'",), (), "UpdatePolicy is set"),
    ],
)
def test_what_a_population_cannot_train_is_refused(
    one: tuple[str, ...], other: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    both = members(tmp_path, *one)[0], members(tmp_path, *other)[1]
    with pytest.raises(UserError, match=message):
        Population([member.program for member in both])


def test_a_run_that_is_being_trained_is_refused_with_its_population(tmp_path: Path) -> None:
    """Planning runs takes no lock; training them does, and gives all back."""
    planned = members(tmp_path)
    with closing(RunFolder(str(tmp_path / "b"))):
        with pytest.raises(UserError, match=f"--workdir={tmp_path}/b is being trained by process"):
            train_many(planned)
        RunFolder(str(tmp_path / "a")).close()
    assert os.listdir(tmp_path / "a") == [LOCK]
