"""Suites in a language model's run: when they train, their files, stops, and mistakes."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest

from hyla_lm.cli.main import main
from hyla_lm.config import gin_files
from hyla_lm.config.declare import configurable, setting
from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.evals.suites import FuzzyLogicSuite, mean_metrics
from hyla_lm.model.config import ModelConfig
from hyla_lm.run.due_actions import check_suites
from tests.run_lines import measured

pytestmark = pytest.mark.usefixtures("programs_once")

LINEAR = ('ModelConfig.attention = "linear"',)  # compiles faster than HYLA
TAG = "suites/fuzzy_logic/held_out_r2"
BINDINGS = (
    "TrainConfig.steps = 10",
    "TrainConfig.batch_size = 8",
    "TrainConfig.eval_every = 100",
    "LogConfig.every = 2",
    "CheckpointConfig.every = 2",
    "ModelConfig.num_layers = 1",
    "ModelConfig.model_dim = 8",
    "ModelConfig.num_heads = 2",
    "ModelConfig.mlp_dim = 8",
    "ModelConfig.use_bias = False",
    "FuzzyLogic.evaluation_examples = 16",
    "SEQUENCE_LENGTH = 8",
    "OptimizerConfig.warmup_steps = 2",
)


@pytest.fixture
def suites_gin(tmp_path: Path) -> Path:
    """A gin file to add to that of a language model."""
    path = tmp_path / "suites.gin"
    path.write_text(
        "import hyla_lm.evals.suites\nTrainConfig.suites = (@FuzzyLogicSuite(),)\n"
        f"FuzzyLogicSuite.seeds = (0, 3)\nFuzzyLogicSuite.bindings = {BINDINGS!r}\n"
    )
    return path


def train(workdir: Path, *gin_files: Path, bindings: tuple[str, ...] = ()) -> int:
    files = [f"--gin_file={path}" for path in gin_files]
    return main(["train", *files, f"--workdir={workdir}", *(f"--gin.{b}" for b in bindings)])


def summary(workdir: Path) -> dict[str, Any]:
    return json.loads((workdir / "summary.json").read_text())


@configurable
@dataclass(frozen=True)
class Counted:
    """A suite without training: it counts its calls, and stops where `STOPS` says."""

    name: str = setting("counted", "its name")
    every: int | None = setting(None, "see Suite")

    def check_model(self, model: ModelConfig) -> None:
        gin_files.read([], [])  # as a suite that reads a gin file of its own

    def run(self, model: ModelConfig, folder: str, share: float) -> dict[str, float]:
        CALLS.append((Path(folder).name, model.attention, share))
        if len(CALLS) in STOPS:
            raise Preempted("stopped on the way")
        return {"score": share}


CALLS: list[tuple[str, Any, float]] = []
STOPS: set[int] = set()


@pytest.fixture
def counted_gin(tmp_path: Path) -> Path:
    """A gin file to add, of a suite that trains every 5 steps and one at the end."""
    CALLS.clear()
    STOPS.clear()
    path = tmp_path / "counted.gin"
    path.write_text(
        "TrainConfig.suites = (@early/Counted(), @late/Counted())\n"
        'early/Counted.name = "early"\nearly/Counted.every = 5\nlate/Counted.name = "late"\n'
    )
    return path


def test_when_suites_train_where_their_metrics_land_and_that_a_stop_loses_nothing(
    tiny_gin: Path, counted_gin: Path, tmp_path: Path
) -> None:
    whole, stopped, plain = (tmp_path / name for name in ("whole", "stopped", "plain"))
    assert train(whole, tiny_gin, counted_gin, bindings=LINEAR) == 0
    shares = [("early", 5 / 12), ("early", 10 / 12), ("early", 1.0), ("late", 1.0)]
    assert [(name, share) for name, _, share in CALLS] == shares
    assert {attention for _, attention, _ in CALLS} == {"linear"}
    assert measured(whole, "suites/") == [
        {"step": 5, "suites/early/score": 5 / 12},
        {"step": 10, "suites/early/score": 10 / 12},
        {"step": 12, "suites/early/score": 1.0, "suites/late/score": 1.0},
    ]
    assert summary(whole)["suites"] == {"early": {"score": 1.0}, "late": {"score": 1.0}}
    CALLS.clear()
    STOPS.update({1, 5})  # at step 5, and in the second suite of step 12
    assert train(stopped, tiny_gin, counted_gin, bindings=LINEAR) == EXIT_STATUS
    assert measured(stopped, "suites/") == []
    assert train(stopped, tiny_gin, counted_gin, bindings=LINEAR) == EXIT_STATUS
    assert [line["step"] for line in measured(stopped, "suites/")] == [5, 10]
    assert not (stopped / "summary.json").exists()
    assert train(stopped, tiny_gin, counted_gin, bindings=LINEAR) == 0
    assert measured(stopped) == measured(whole)
    assert summary(stopped)["suites"] == summary(whole)["suites"]
    STOPS.clear()
    assert train(plain, tiny_gin, bindings=LINEAR) == 0
    assert "suites" not in summary(plain)
    assert measured(plain) == [
        line for line in measured(whole) if line not in measured(whole, "suites/")
    ]
    for _ in range(2):  # a finished run can be given suites
        assert train(plain, tiny_gin, counted_gin, bindings=LINEAR) == 0
        assert measured(plain, "suites/") == measured(whole, "suites/")[-1:]
        assert summary(plain)["suites"] == summary(whole)["suites"]


def test_suites_train_alongside_with_the_attention_of_the_run(
    tiny_gin: Path, suites_gin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alongside = (
        "FuzzyLogicSuite.every = 7",
        'ModelConfig.attention = "linear_rms_head"',
        'ModelConfig.value_activation = "silu"',
    )
    workdir = tmp_path / "run"
    assert train(workdir, tiny_gin, suites_gin, bindings=alongside) == 0
    (at_7, at_12) = measured(workdir, TAG)
    assert (at_7["step"], at_12["step"]) == (7, 12) and at_7[TAG] != at_12[TAG]
    metrics = summary(workdir)["suites"]["fuzzy_logic"]
    assert {"step": 12, **{f"suites/fuzzy_logic/{k}": v for k, v in metrics.items()}} == at_12
    means = []
    for seed in (0, 3):
        folder = workdir / "suites" / "fuzzy_logic" / f"seed{seed}"
        # A run of 12 steps is at 7: the suite of 10 steps trains 5.
        assert [line["step"] for line in measured(folder, "validation/")] == [5, 10]
        assert summary(folder)["attention"] == ["linear_rms_head"]
        assert "ModelConfig.value_activation = 'silu'" in (folder / "config.gin").read_text()
        means.append(summary(folder)["validation"]["held_out_r2"])
    assert at_12[TAG] == pytest.approx(sum(means) / 2)
    assert at_12[f"{TAG}_standard_error"] == pytest.approx(abs(means[0] - means[1]) / 2)
    described = f"held_out r2 {metrics['held_out_r2']:.3f}.* .means over 2 of 2 seeds"
    assert re.search(f"suite fuzzy_logic: .*{described}", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            ('ModelConfig.attention = ("hyla", "linear", "hyla")', "ModelConfig.num_layers = 3"),
            "FuzzyLogicSuite cannot train with the run's attention .*FuzzyLogicSuite.bindings",
        ),
        (('FuzzyLogicSuite.gin_file = "absent.gin"',), "does not exist"),
        (
            (f"FuzzyLogicSuite.bindings = {(*BINDINGS, 'TrainConfig.profile = (1, 1)')!r}",),
            "TrainConfig.profile is set, which runs that train together do not follow",
        ),
        (("TrainConfig.suites = (@FuzzyLogicSuite(), @FuzzyLogicSuite())",), "'fuzzy_logic' twice"),
    ],
)
def test_mistakes_are_reported_before_anything_is_trained(
    bindings: tuple[str, ...],
    message: str,
    tiny_gin: Path,
    suites_gin: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(tmp_path / "run", tiny_gin, suites_gin, bindings=bindings) == 2
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    assert re.search(message, capsys.readouterr().err)


def test_suites_of_several_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(UserError, match=r"one process, and this run has 4"):
        check_suites((FuzzyLogicSuite(),), ModelConfig())
    check_suites((), ModelConfig())


def test_any_generated_task_can_be_a_suite() -> None:
    suite = FuzzyLogicSuite(gin_file="gin/evals/match3.gin", name="match3")
    check_suites((suite,), ModelConfig(attention="linear"))


def test_means_leave_out_what_is_not_finite() -> None:
    runs = [{"r2": 0.5}, {"r2": 0.7}, {"r2": float("nan")}, {}]
    metrics = mean_metrics([{"validation": validation} for validation in runs])
    assert metrics == pytest.approx({"diverged_runs": 2, "r2": 0.6, "r2_standard_error": 0.1})
    assert mean_metrics([{"validation": {}}]) == {"diverged_runs": 1}
    assert mean_metrics([{"validation": {"r2": 0.5}}]) == {"diverged_runs": 0, "r2": 0.5}
