"""A process for each run: what it says, how it ends, how many at once, and how all are stopped."""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.ending import DONE, FAILED, STOPPED, Preempted
from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.command import status_of, summary_of, train_runs
from hyla_lm.tools.sweep.metric import Metric
from hyla_lm.tools.sweep.record import Record
from hyla_lm.tools.sweep.runner import CACHE, CACHED_FROM, Children, Ended
from hyla_lm.tools.sweep.runs import Run
from tests.sweeps.conftest import Plan, finish

METRIC = Metric("validation/bits_per_byte", "lowest")
# Stands in for `hyla-lm train`: the folder of its seed decides what it does.
PROGRAM = """
import os, signal, sys, time
[workdir] = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
print("step 5/10  loss 2.0")
print("step 5  validation loss 2.0")
print(os.environ["JAX_COMPILATION_CACHE_DIR"], os.environ.get("{from_}"))
"""
NAN = """
print("hyla-lm: step 7: loss nan. Lower it.\\n  a second line", file=sys.stderr)
sys.exit(1)
"""
WAITS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("step 6/10  waits", flush=True)
time.sleep(60)
"""


def children(tmp_path: Path, body: str, said: list[str]) -> Children:
    program = PROGRAM.replace("{from_}", CACHED_FROM) + body
    return Children((sys.executable, "-S", "-c", program), str(tmp_path / "sweep"), said.append)


def test_what_a_run_prints_is_kept_and_its_steps_are_told(planned: Plan, tmp_path: Path) -> None:
    said: list[str] = []
    run = planned()[0]
    assert children(tmp_path, "", said).train(run) == Ended(DONE)
    assert said == ["learning_rate=0.1/seed=0: step 5/10  loss 2.0"]
    assert "step 5  validation loss 2.0\n" in Path(f"{run.workdir}.txt").read_text()


def test_runs_share_compiled_programs_unless_the_user_says_where(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = planned()[0]
    monkeypatch.setenv(CACHE, "/mine")
    monkeypatch.delenv(CACHED_FROM, raising=False)
    children(tmp_path, "", []).train(run)
    monkeypatch.delenv(CACHE)
    children(tmp_path, "", []).train(run)
    lines = Path(f"{run.workdir}.txt").read_text().splitlines()
    assert lines[2::3] == ["/mine None", f"{tmp_path}/sweep/.programs 0"]


def test_a_failure_has_the_sentence_of_the_run(
    planned: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    ended = children(tmp_path, NAN, []).train(planned()[0])
    assert ended == Ended(1, "step 7: loss nan. Lower it.\n  a second line")
    assert ended.reason == "step 7: loss nan. Lower it."
    ended = children(tmp_path, "os.kill(os.getpid(), 9)", []).train(planned()[0])
    assert ended is not None and ended.reason == "its process was killed by signal 9"
    ended = children(tmp_path, "sys.exit(3)", []).train(planned()[0])
    assert ended is not None and ended.reason == "its process ended with status 3"


def test_stop_ends_the_runs_and_begins_no_other(planned: Plan, tmp_path: Path) -> None:
    said: list[str] = []
    own = children(tmp_path, WAITS, said)
    stopper = threading.Thread(target=stop_when, args=(own, lambda: any("6/10" in s for s in said)))
    stopper.start()
    assert own.train(planned()[0]) == Ended(STOPPED)
    stopper.join()
    assert own.train(planned()[1]) is None


def stop_when(own: Children, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    own.stop()


def test_a_run_that_dies_of_the_stop_before_it_saves_anything_is_stopped(
    planned: Plan, tmp_path: Path
) -> None:
    own = children(tmp_path, "print('step 6/10', flush=True); time.sleep(60)", said := [])
    stopper = threading.Thread(target=stop_when, args=(own, lambda: "6/10" in "".join(said)))
    stopper.start()
    assert own.train(planned()[0]) == Ended(STOPPED)
    stopper.join()


class Trainer:
    """Finishes runs, but for those it is told to fail or to be stopped at."""

    def __init__(self, ends: dict[str, Ended] | None = None):
        self.ends, self.trained, self.is_stopped = ends or {}, list[str](), False

    def train(self, run: Run) -> Ended | None:
        if self.is_stopped:
            return None
        self.trained.append(run.name.removeprefix("learning_rate="))
        return self.ends.get(self.trained[-1]) or finish(
            run, run.experiment.optimizer.learning_rate
        )

    def stop(self) -> None:
        self.is_stopped = True


def sweep(runs: list[Run], trainer: Trainer, tmp_path: Path, at_once: int = 1) -> int:
    """The status of a sweep that a trainer trains."""
    (tmp_path / "sweep").mkdir(exist_ok=True)
    record = Record(tmp_path / "sweep", runs)
    train_runs(runs, METRIC, record, trainer.train, trainer.stop, at_once, lambda line: None)
    return status_of(summary_of(runs, METRIC, record))


def failures(tmp_path: Path) -> dict[str, str]:
    return json.loads((tmp_path / "sweep" / "sweep.json").read_text())["failures"]


def test_finished_runs_are_not_trained_again(planned: Plan, tmp_path: Path) -> None:
    trainer = Trainer()
    assert sweep(planned(seeds=1), trainer, tmp_path) == DONE
    assert trainer.trained == ["0.1/seed=0", "0.2/seed=0", "0.3/seed=0"]
    trainer = Trainer()
    assert sweep(planned(seeds=2), trainer, tmp_path) == DONE
    assert trainer.trained == ["0.1/seed=1", "0.2/seed=1", "0.3/seed=1"]
    trainer = Trainer()
    assert sweep(planned(seeds=2), trainer, tmp_path) == DONE
    assert trainer.trained == []


def test_a_failed_run_is_noted_the_others_go_on_and_it_is_tried_again(
    planned: Plan, tmp_path: Path
) -> None:
    trainer = Trainer({"0.2/seed=0": Ended(2, "step 7: loss nan.\nmore")})
    assert sweep(planned(), trainer, tmp_path) == FAILED
    assert len(trainer.trained) == 6
    assert failures(tmp_path) == {"learning_rate=0.2/seed=0": "step 7: loss nan."}
    trainer = Trainer()
    assert sweep(planned(), trainer, tmp_path) == DONE
    assert trainer.trained == ["0.2/seed=0"] and failures(tmp_path) == {}


def test_a_stop_leaves_the_rest_to_the_same_command(planned: Plan, tmp_path: Path) -> None:
    trainer = Trainer({"0.1/seed=1": Ended(STOPPED)})
    with pytest.raises(Preempted, match="1 of 6 runs left"):
        sweep(planned(), trainer, tmp_path)
    assert len(trainer.trained) == 6 and failures(tmp_path) == {}
    trainer = Trainer()
    assert sweep(planned(), trainer, tmp_path) == DONE
    assert trainer.trained == ["0.1/seed=1"]


def test_runs_train_at_once(planned: Plan, tmp_path: Path) -> None:
    barrier = threading.Barrier(3, timeout=20)
    trainer = Trainer()

    def train(run: Run) -> Ended | None:
        barrier.wait()
        return trainer.train(run)

    together = Trainer()
    together.train = train  # type: ignore[method-assign]
    assert sweep(planned(), together, tmp_path, at_once=3) == DONE


def test_a_metric_that_the_first_run_has_not_ends_the_sweep(planned: Plan, tmp_path: Path) -> None:
    (tmp_path / "sweep").mkdir()
    runs, trainer = planned(), Trainer()
    record, other = Record(tmp_path / "sweep", runs), Metric("validation/accuracy", "highest")
    with pytest.raises(UserError, match="give one of .*validation/bits_per_byte"):
        train_runs(runs, other, record, trainer.train, trainer.stop, 1, lambda line: None)
    assert trainer.is_stopped
