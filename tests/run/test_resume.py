"""A run killed with SIGKILL and started again equals one never stopped, to the last bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from hyla_lm.ending import STOPPED as EXIT_STATUS
from tests import preloaded
from tests.run_lines import measured

STEPS = 12
KILLER = """
import os, signal, sys, time
from hyla_lm.checkpoint import checkpoint
from hyla_lm.cli.main import main
from hyla_lm.logs.step_log import StepLog
from hyla_lm.run import evaluation
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.store import RunStore
from hyla_lm.signals import signals

where, number, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
calls = 0

def kill():
    os.kill(os.getpid(), number)
    while not signals().is_asked:  # a thread answers, which must not decide the step that ends it
        time.sleep(0.001)

def kill_at(call, function):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == call and where != "saving":
            kill()
        result = function(*args, **kwargs)
        if calls == call:
            kill()
        return result
    return wrapped

if where == "training":
    StepLog.record = kill_at(8, StepLog.record)
elif where == "evaluation":
    evaluation.evaluate = kill_at(2, evaluation.evaluate)
elif where == "logging":
    RunFolder.append_line = kill_at(7, RunFolder.append_line)
elif where == "opening":
    RunStore.begin = kill_at(1, RunStore.begin)
elif where == "saving":
    checkpoint.Checkpointer.save = kill_at(2, checkpoint.Checkpointer.save)
sys.exit(main(arguments))
"""


def train(gin_file: Path, workdir: Path, where: str = "never", number: int = signal.SIGKILL) -> int:
    """Trains and sends the process a signal somewhere; returns its status."""
    arguments = ["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]
    command = [sys.executable, "-c", KILLER, where, str(int(number)), *arguments]
    done = preloaded.run(command, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL, EXIT_STATUS), done.stderr
    expected = ("INFO:hyla_lm.input.manifest",)  # how far it came
    lines = done.stderr.splitlines()
    foreign = [line for line in lines if not any(part in line for part in expected)]
    assert done.returncode != 0 or not foreign, "a run that goes well says nothing on stderr"
    return done.returncode


def final_arrays(workdir: Path) -> list[np.ndarray]:
    import jax

    path = workdir / "checkpoints" / str(STEPS) / "state"
    return [np.asarray(leaf) for leaf in jax.tree.leaves(ocp.StandardCheckpointer().restore(path))]


STREAM = """
include "{folder}/rows.gin"
LanguageModel.data = @C4Stream()
C4Stream.train = ("{folder}/c4-train.*",)
C4Stream.validation = ("{folder}/c4-validation.*",)
C4Stream.tokenizer = "{tokenizer}"
"""


# Rows and a stream differ in what they save of the data; how a run is killed is the same for both.
IN_FULL = pytest.mark.full
CASES = [("rows", "training"), ("rows", "saving"), ("stream", "training")]
CASES += [pytest.param("rows", where, marks=IN_FULL) for where in ("evaluation", "logging")]
STOPS = ["opening", "training"]
STOPS += [pytest.param(where, marks=IN_FULL) for where in ("evaluation", "saving")]


@pytest.fixture
def data(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def gin_file(data: str, tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import SEQUENCE_LENGTH, TINY, sentences
    from tests.data.c4_layouts import write_json_gz

    home = tmp_path_factory.mktemp("resume")
    text = TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH)
    if data == "stream":
        write_json_gz([sentences(seed, 1 + seed % 9) for seed in range(50)], home, "train", 3)
        write_json_gz([sentences(seed, 3) for seed in range(90, 100)], home, "validation", 1)
        (home / "rows.gin").write_text(text)
        text = STREAM.format(folder=home, tokenizer=tiny_rows.tokenizer)
    (home / "tiny.gin").write_text(text)
    return home / "tiny.gin"


@pytest.fixture(scope="module")
def never_stopped() -> dict[str, Path]:
    return {}


@pytest.fixture
def uninterrupted(
    data: str,
    gin_file: Path,
    never_stopped: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run on each kind of data, trained once for all tests."""
    if data not in never_stopped:
        workdir = tmp_path_factory.mktemp("uninterrupted") / "run"
        assert train(gin_file, workdir) == 0
        never_stopped[data] = workdir
    return never_stopped[data]


@pytest.mark.parametrize(("data", "where"), CASES, indirect=["data"])
def test_a_killed_run_ends_like_one_never_stopped(
    where: str, gin_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    assert train(gin_file, workdir, where) == -signal.SIGKILL
    assert train(gin_file, workdir) == 0
    assert measured(workdir) == measured(uninterrupted)
    for resumed, expected in zip(final_arrays(workdir), final_arrays(uninterrupted), strict=True):
        assert resumed.tobytes() == expected.tobytes()


@pytest.mark.parametrize("where", STOPS)
@pytest.mark.parametrize("data", ["rows"], indirect=True)
def test_a_run_asked_to_stop_saves_and_goes_on(
    where: str, gin_file: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    assert train(gin_file, workdir, where, signal.SIGTERM) == EXIT_STATUS
    assert saved_steps(workdir) and not (workdir / "summary.json").exists()
    assert train(gin_file, workdir) == 0
    assert measured(workdir) == measured(uninterrupted)
    for resumed, expected in zip(final_arrays(workdir), final_arrays(uninterrupted), strict=True):
        assert resumed.tobytes() == expected.tobytes()


def saved_steps(workdir: Path) -> list[int]:
    names = (path.name for path in (workdir / "checkpoints").iterdir())
    return sorted(int(name) for name in names if name.isdigit())


@pytest.mark.full
@pytest.mark.parametrize("data", ["rows"], indirect=True)
def test_twenty_requests_to_stop_at_random_moments_lose_nothing(
    gin_file: Path, tmp_path: Path
) -> None:
    often = ["TrainConfig.steps=1500", "TrainConfig.eval_every=7", "CheckpointConfig.every=11"]
    arguments = [f"--gin_file={gin_file}", *(f"--gin.{binding}" for binding in often)]
    rng = random.Random(0)
    whole, workdir = tmp_path / "whole", tmp_path / "run"
    command = [sys.executable, "-m", "hyla_lm", "train", *arguments]
    preloaded.run([*command, f"--workdir={whole}"], check=True, capture_output=True)
    stopped = 0
    while stopped < 20:
        last = saved_steps(workdir)[-1] if stopped else 0
        process = preloaded.Popen(
            [*command, f"--workdir={workdir}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert process.stdout is not None
        process.stdout.readline()  # the summary: training begins
        time.sleep(rng.uniform(0, 4))
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == EXIT_STATUS, errors.decode()
        assert saved_steps(workdir)[-1] >= last
        stopped += 1
    preloaded.run([*command, f"--workdir={workdir}"], check=True, capture_output=True)
    assert measured(workdir) == measured(whole)


@pytest.mark.parametrize("data", ["rows"], indirect=True)
def test_a_finished_run_is_left_as_it_is(gin_file: Path, uninterrupted: Path) -> None:
    before = measured(uninterrupted)
    assert train(gin_file, uninterrupted) == 0
    assert measured(uninterrupted) == before


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    from hyla_lm.run.folder import RunFolder

    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    with closing(RunFolder(str(tmp_path))) as folder:
        folder.keep_lines_until(2)
    assert measured(tmp_path) == [{"step": 1}, {"step": 2}]
    assert sorted(os.listdir(tmp_path)) == [".lock", "metrics.jsonl"]


def test_the_lines_of_actions_that_are_done_again_are_dropped(tmp_path: Path) -> None:
    from hyla_lm.run.folder import RunFolder

    lines = [{"step": 1, "train/loss_nats": 2.0}, {"step": 1, "validation/loss_nats": 2.0}]
    lines += [{"step": 2, "train/loss_nats": 1.0}, {"step": 2, "validation/loss_nats": 1.0}]
    lines += [{"step": 2, "suites/a/r2": 1.0}]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    for redone, kept in (
        ([], lines),
        (["validation/"], [*lines[:3], lines[4]]),
        (["suites/"], lines[:4]),
        (["validation/", "suites/"], lines[:3]),
    ):
        (tmp_path / "metrics.jsonl").write_text(text)
        with closing(RunFolder(str(tmp_path))) as folder:
            folder.keep_lines_until(2, redone)
        assert measured(tmp_path) == kept
