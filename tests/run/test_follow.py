"""An evaluator that follows a run: what it evaluates, what it writes, what it leaves unchanged."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla_lm.checkpoint.checkpoint import Checkpointer, Damaged
from hyla_lm.ending import Preempted
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.folder import RunFolder, read_lines
from hyla_lm.run.follow import follow
from hyla_lm.run.restored import program_of
from tests import preloaded
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")
COMMAND = """
import sys
from hyla_lm.cli.main import main
from hyla_lm.run import follow

follow.POLL_SECONDS = 0.1
sys.exit(main(sys.argv[1:]))
"""

STEPS = [5, 10, 12]
LEFT_TO_ANOTHER = "TrainConfig.eval_every = 0\nLanguageModel.validation_rows = 8\n"


@pytest.fixture(scope="module", autouse=True)
def looks_often() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hyla_lm.run.follow.POLL_SECONDS", 0.01)
        yield


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("follow"), tiny_rows, LEFT_TO_ANOTHER)


@pytest.fixture(scope="module")
def trained(gin_file: Path) -> Path:
    """A finished run of 12 steps that left its evaluations to another process."""
    workdir = gin_file.with_name("run")
    assert train(gin_file, workdir) == 0
    lines = [line for line in read_lines(workdir) if "validation/loss_nats" in line]
    assert [line["step"] for line in lines] == [12], "it evaluates only at its end"
    return workdir


@pytest.fixture(scope="module")
def followed(trained: Path) -> Path:
    """A copy of that run after an evaluator has followed it."""
    workdir = Path(shutil.copytree(trained, trained.with_name("followed")))
    evaluated(workdir)
    return workdir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def evaluated(workdir: Path, also: Callable[[str], Any] = lambda _: None) -> list[str]:
    """What an evaluator says that follows a run to its end."""
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        also(line)

    follow(str(workdir), partial(program_of, str(workdir)), say)
    return said


def files_of_the_run(workdir: Path) -> dict[str, bytes]:
    files = (path for path in workdir.rglob("*") if path.is_file())
    names = {path.relative_to(workdir).as_posix(): path for path in files}
    return {n: p.read_bytes() for n, p in names.items() if not n.startswith("evaluator/")}


def test_each_checkpoint_is_evaluated_and_nothing_of_the_run_is_touched(
    trained: Path, followed: Path
) -> None:
    lines = list(read_lines(followed / "evaluator"))
    assert [line["step"] for line in lines] == STEPS
    assert lines[-1] == measured(trained, "validation/")[-1]
    assert files_of_the_run(followed) == files_of_the_run(trained)
    events = EventAccumulator(str(followed / "evaluator"))
    events.Reload()
    points = events.Scalars("validation/loss_nats")
    assert [point.step for point in points] == STEPS
    losses = [line["validation/loss_nats"] for line in lines]
    assert [point.value for point in points] == pytest.approx(losses)


def test_a_step_is_evaluated_once(followed: Path) -> None:
    lines = followed / "evaluator" / "metrics.jsonl"
    before = lines.read_bytes()
    assert evaluated(followed) == [f"{followed} is finished at step 12, and evaluated"]
    assert lines.read_bytes() == before


def test_an_evaluator_that_was_killed_resumes_behind_its_last_whole_line(
    followed: Path, tmp_path: Path
) -> None:
    workdir = Path(shutil.copytree(followed, tmp_path / "run"))
    path = workdir / "evaluator" / "metrics.jsonl"
    first, second, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:20])
    assert [line[:7] for line in evaluated(workdir)[:-1]] == ["step 10", "step 12"]
    assert measured(workdir / "evaluator") == measured(followed / "evaluator")


def test_a_checkpoint_that_vanishes_is_left_out_and_a_damaged_one_is_named_at_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meta = Checkpointer.meta

    def deleted_first(checkpoints: Checkpointer, step: int) -> dict[str, Any]:
        if step == 5:
            shutil.rmtree(run / "checkpoints" / "5")
        return meta(checkpoints, step)

    monkeypatch.setattr(Checkpointer, "meta", deleted_first)
    shutil.rmtree(run / "checkpoints" / "10" / "meta")
    said = evaluated(run)
    for step, line in zip((5, 10), said, strict=False):
        assert line.startswith(f"step {step} is left out for now: {run}/checkpoints/{step} cannot ")
    assert said[-1] == f"{run} is finished at step 12, and evaluated, but steps 10"
    assert [line["step"] for line in read_lines(run / "evaluator")] == [12]


def test_what_cannot_be_read_for_a_while_is_read_later(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors that pass, of the storage and of a damaged read, leave no step out."""
    restore = Checkpointer.restore_parameters
    errors = {5: [Unavailable("an outage.")] * 2, 10: [Damaged("half a file.")]}

    def restore_later(checkpoints: Checkpointer, step: int, *more: Any) -> Any:
        if errors.get(step):
            raise errors[step].pop()
        return restore(checkpoints, step, *more)

    monkeypatch.setattr(Checkpointer, "restore_parameters", restore_later)
    said = evaluated(run)
    assert said[0] == "an outage." and "step 10 is left out for now: half a file." in said
    assert said[-1] == f"{run} is finished at step 12, and evaluated"
    assert sorted(line["step"] for line in read_lines(run / "evaluator")) == STEPS


def test_what_it_waits_for_is_said_once_until_it_is_interrupted(run: Path) -> None:
    """The summary is written last: without it the run is not finished."""
    (run / "summary.json").unlink()
    waits = f"waits for a checkpoint of {run}"

    def stop(line: str) -> None:
        if line == waits:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Preempted, match="stopped"):
        evaluated(run, stop)
    assert len(list(read_lines(run / "evaluator"))) == 3


def test_only_one_evaluator_follows_a_run(run: Path) -> None:
    other = RunFolder(str(run / "evaluator"))
    with pytest.raises(UserError, match="evaluator"):
        evaluated(run)
    other.close()


def test_a_process_beside_waits_for_the_run_and_ends_with_it(
    gin_file: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    command = [sys.executable, "-c", COMMAND, "evaluate", "--follow", f"--workdir={workdir}"]
    with preloaded.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as p:
        assert p.stdout is not None
        said = p.stdout.readline()
        assert said == f"waits for a run in {workdir}\n"
        assert not workdir.exists()
        often = ["CheckpointConfig.keep = 1", "CheckpointConfig.every = 4"]
        assert train(gin_file, workdir, *often) == 0
        rest = p.stdout.read()
        assert p.wait() == 0, rest
    lines = list(read_lines(workdir / "evaluator"))
    steps = [line["step"] for line in lines]
    assert steps[-1] == 12 and set(steps) <= {4, 8, 12}
    summary = json.loads((workdir / "summary.json").read_text())
    assert lines[-1]["validation/loss_nats"] == summary["validation"]["loss_nats"]
