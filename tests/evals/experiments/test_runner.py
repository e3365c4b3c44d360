"""The runner trains missing runs once, and refuses wrong requests before anything trains."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.cli.main import main
from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.ending import Preempted
from hyla_lm.evals.experiments import runner
from hyla_lm.evals.experiments.runner import Request, plan, populations
from hyla_lm.evals.populations.train_many import Member
from hyla_lm.run.folder import RunFolder

pytestmark = pytest.mark.usefixtures("programs_once")


class FakeTraining:
    """Stands for train_many: remembers who trained together and leaves what it would leave."""

    def __init__(self) -> None:
        self.populations: list[list[str]] = []
        self.stops_at: int | None = None

    def __call__(self, members: Sequence[Member]) -> None:
        if self.stops_at == len(self.populations):
            raise Preempted("stopped after step 4, which is saved")
        self.populations.append(["/".join(Path(m.workdir).parts[-3:]) for m in members])
        for member in members:
            with closing(RunFolder(member.workdir)) as folder:
                folder.write("config.gin", member.program.experiment.text)
                folder.write("summary.json", json.dumps(summary(member)))


def summary(member: Member) -> dict[str, Any]:
    """Metrics that tell runs apart: held out favours a low rate, in distribution a high one."""
    e = member.program.experiment
    held_out = 0.5 + 0.01 * e.train.seed - 10 * e.optimizer.learning_rate
    sets = {"held_out_r2": held_out, "in_distribution_r2": 0.9 + e.optimizer.learning_rate}
    made_on = {"device": "cpu", "jax": "0", "git_revision": "abc"}
    return {"step": e.train.steps, "train": {"mse": 0.1}, "validation": sets, **made_on}


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTraining]:
    fake = FakeTraining()
    monkeypatch.setattr(runner, "train_many", fake)
    yield fake


def command(workdir: Path, *more: str) -> list[str]:
    run = ["evals", "fuzzy_logic", f"--workdir={workdir}"]
    return [*run, "--variants=softmax,hyla", "--seeds=0,1", *more]


def test_finished_runs_stay_and_new_seeds_are_added(training: FakeTraining, tmp_path: Path) -> None:
    main(command(tmp_path))
    point = "lr0.001_wd0.1_warmup100"
    assert training.populations == [
        [f"{row}/{point}/seed0", f"{row}/{point}/seed1"] for row in ("softmax", "hyla")
    ]
    training.populations.clear()
    lost = next((tmp_path / "results").iterdir())
    lost.unlink()  # as a kill before it was written leaves it
    assert main(command(tmp_path)) == 0
    assert training.populations == [] and lost.is_file()
    assert main(command(tmp_path, "--seeds=0,1,2", "--variants=hyla")) == 0
    assert training.populations == [["hyla/lr0.001_wd0.1_warmup100/seed2"]]
    found = [json.loads(path.read_text()) for path in (tmp_path / "results").iterdir()]
    assert [run["seed"] for run in found if "--seeds=0,1,2" in run["command"]] == [2]


def test_a_stop_keeps_what_is_finished_and_the_same_command_goes_on(
    training: FakeTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.stops_at = 1
    assert main(command(tmp_path)) == EXIT_STATUS
    assert "the same command" in capsys.readouterr().err
    assert len(list((tmp_path / "results").iterdir())) == 2
    training.stops_at = None
    assert main(command(tmp_path)) == 0
    assert [group[0].split("/")[0] for group in training.populations] == ["softmax", "hyla"]


def test_the_grid_is_the_published_one(training: FakeTraining, tmp_path: Path) -> None:
    runs = plan(Request("fuzzy_logic", str(tmp_path), variants=("hyla",), grid=True))
    found = [run.result for run in runs]
    points = [(run.point["learning_rate"], run.point["weight_decay"]) for run in found[::3]]
    assert points == [(1e-3, 0.03), (1e-3, 0.1), (3e-3, 0.03), (3e-3, 0.1)]
    assert [run.seed for run in found[:3]] == [0, 1, 2]
    assert len(populations(runs, 24)) == 1 and len(populations(runs, 3)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds=0,3", "--runs_at_once=1"], "seeds 0, 1, 2 and 2024, not for 66 and 3"),
        (['--gin.ModelConfig.attention="linear"'], "attention sets what the suite, the row"),
        (["--grid", "--gin.OptimizerConfig.learning_rate=1e-2"], "learning_rate sets what"),
    ],
)
def test_a_mistake_is_told_before_anything_trains(
    arguments: list[str],
    message: str,
    training: FakeTraining,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(command(tmp_path / "runs", *arguments)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and re.search(message, error)
    assert training.populations == [] and not (tmp_path / "runs").exists()


def test_a_folder_with_another_configuration_is_refused(
    training: FakeTraining, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(command(tmp_path, "--gin.ModelConfig.mlp_dim=64"))
    training.populations.clear()
    assert main(command(tmp_path, "--steps=2500")) == 2
    error = capsys.readouterr().err
    assert "seed0 holds a run with ModelConfig.mlp_dim = '64' but this run has '256'" in error
    assert "give another --workdir" in error
    assert training.populations == []
    other_saves = ("--gin.ModelConfig.mlp_dim=64", "--gin.CheckpointConfig.every=25000")
    assert main(command(tmp_path, "--seeds=0,1,2", *other_saves)) == 0
    assert len(training.populations) == 2
    assert (tmp_path / "report.md").read_text().count("## Fuzzy logic") == 1


def test_a_suite_from_its_command_to_its_report(tmp_path: Path) -> None:
    """Nothing is faked here: two seeds of one small model train, are reported and shown."""
    small = ["num_layers=1", "model_dim=8", "num_heads=2", "mlp_dim=8"]
    arguments = [
        *("evals", "fuzzy_logic"),
        f"--workdir={tmp_path}",
        "--variants=linear",
        "--seeds=0,1",
        "--preset=strict",
        "--steps=4",
        "--split=covering",
        *(f"--gin.ModelConfig.{binding}" for binding in small),
        "--gin.TrainConfig.batch_size=8",
        "--gin.FuzzyLogic.evaluation_examples=8",
        "--gin.OptimizerConfig.warmup_steps=1",
        "--gin.LogConfig.every=4",
    ]
    assert main(arguments) == 0
    experiment = tmp_path / "fuzzy_logic" / "strict" / "table_a1"
    run = experiment / "linear" / "lr0.001_wd0.1_warmup1" / "seed1"
    summary = json.loads((run / "summary.json").read_text())
    name = f"fuzzy_logic-strict-table_a1-linear-{run.parent.name}-seed1.json"
    assert json.loads((tmp_path / "results" / name).read_text())["summary"] == summary
    report = (tmp_path / "report.md").read_text()
    assert "| Linear attention | " in report and "59.89 ± 5.22" in report
    (picture,) = tmp_path.glob("*.png")
    assert f"({picture.name})" in report
    assert picture.read_bytes().startswith(b"\x89PNG")
