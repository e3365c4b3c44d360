"""Several processes train one model as one process would, and agree before they start."""

import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyla_lm.ending import STOPPED as EXIT_STATUS
from hyla_lm.parallel.processes import UNAVAILABLE
from hyla_lm.run.evaluation import read_documents
from tests import preloaded
from tests.parallel.running import (
    Finished,
    environment,
    run_processes,
    start_processes,
    train_command,
)
from tests.run.buckets.fake_bucket import FakeBucket
from tests.run_lines import measured

SENDS_ITSELF = """
import os, time
from hyla_lm import ending
from hyla_lm.logs import step_log
from hyla_lm.cli import main as cli

record, told = step_log.StepLog.record, ending.told

def record_and_send(log, step, *rest):
    if step == {step}:
        os.kill(os.getpid(), {number})
    if step >= {step}:
        time.sleep(1)  # meanwhile all agree on the step where they stop
    record(log, step, *rest)

def told_late(error):
    time.sleep({seconds_to_end})
    return told(error)

step_log.StepLog.record, ending.told = record_and_send, told_late
ending.process(cli.main)
"""
# At 1e-2, RMSHead of this tiny model scales rounding up a thousandfold in 12 steps, on any mesh.
# At 1e-3 losses of all meshes agree within 6e-8; validation falls by 150 times the tolerance.
LEARNING_RATE = 1e-3
SILENCE, SECONDS_TO_END = 10, 40  # one in no collective ends after silence; load takes longer
# Each process holds a half of the parameters that 4 divides, and all of the others.
SETTINGS = ("MeshConfig.fsdp=4", "LogConfig.layers=True", "LogConfig.details_every=6")
SAMPLED = "LanguageModel.closing_prompt='ba'"


def losses(workdir: Path) -> list[tuple[int, float]]:
    named = ("train/loss_nats", "validation/loss_nats")
    return [
        (line["step"], line[name]) for line in measured(workdir) for name in named if name in line
    ]


def assert_same_losses(found: Path, expected: Path) -> None:
    """Equal steps; losses equal but for the order in which float32 sums over devices are taken."""
    there, here = losses(found), losses(expected)
    assert [step for step, _ in there] == [step for step, _ in here] and there
    np.testing.assert_allclose([x for _, x in there], [x for _, x in here], rtol=2e-5)


def assert_same_figures(found: Path, expected: Path) -> None:
    """Norms by layer, and what was seen inside attention."""
    for prefix, points in (("optim/", [3, 6, 9, 12]), ("attention/", [6, 12])):
        there, here = measured(found, prefix), measured(expected, prefix)
        assert [line["step"] for line in here] == points
        assert there == [pytest.approx(line, rel=1e-4) for line in here]


def assert_same_documents(found: Path, expected: Path) -> None:
    """At the last step: the documents of all processes' rows, and the loss of each."""
    there, here = (read_documents(folder, 12) for folder in (found, expected))
    assert there is not None and here is not None
    for column in ("row_N", "place_N", "tokens_N", "bytes_N"):
        columns = [getattr(losses.sets[""], column) for losses in (there, here)]
        np.testing.assert_array_equal(*columns)
    np.testing.assert_allclose(there.sets[""].nats_N, here.sets[""].nats_N, rtol=2e-5)


@pytest.fixture(scope="module")
def gin_file(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.conftest import SEQUENCE_LENGTH, TINY

    path = tmp_path_factory.mktemp("multihost") / "tiny.gin"
    text = TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH)
    path.write_text(f"{text}OptimizerConfig.learning_rate = {LEARNING_RATE}\n")
    return path


@dataclass(frozen=True)
class Whole:
    """A run of two processes with two devices each that nothing stopped, and its lines."""

    workdir: Path
    finished: list[Finished]
    lines: list[dict[str, Any]]


@pytest.fixture(scope="module")
def whole(gin_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    workdir = tmp_path_factory.mktemp("whole") / "run"
    finished = run_processes([train_command(gin_file, workdir, *SETTINGS, SAMPLED)] * 2, 2)
    assert [status for status, _, _ in finished] == [0, 0], finished
    return Whole(workdir, finished, measured(workdir))


def run_alone(gin_file: Path, workdir: Path, *bindings: str) -> str:
    """Trains in one process with four devices; returns what it printed."""
    command = [sys.executable, *train_command(gin_file, workdir, *bindings)]
    done = preloaded.run(command, env=environment(4), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_train_as_one_and_one_goes_on(
    gin_file: Path, tmp_path: Path, whole: Whole
) -> None:
    alone, workdir = tmp_path / "alone", whole.workdir
    printed = run_alone(gin_file, alone, *SETTINGS, SAMPLED)
    assert "sample:" in printed and "sample:" in whole.finished[0][1]
    assert_same_losses(workdir, alone)
    assert_same_figures(workdir, alone)
    assert_same_documents(workdir, alone)
    assert all("loss" not in output for _, output, _ in whole.finished[1:])

    shutil.rmtree(workdir / "checkpoints" / "12")
    (workdir / "summary.json").unlink()
    run_alone(gin_file, workdir, *SETTINGS)
    assert_same_losses(workdir, alone)
    assert (workdir / "summary.json").is_file()


def test_all_processes_stop_at_one_step_when_one_is_asked_to(
    gin_file: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "run"
    command = train_command(gin_file, workdir, *SETTINGS)
    sends = SENDS_ITSELF.format(step=4, number=int(signal.SIGTERM), seconds_to_end=2)
    asked = ["-c", sends, *command[2:]]
    finished = run_processes([command, asked], 2)
    assert [status for status, _, _ in finished] == [EXIT_STATUS] * 2, finished
    said = r"stopped (?:after|in the evaluation of) step (\d+)"
    stopped = {re.search(said, error)[1] for _, _, error in finished}
    assert len(stopped) == 1 and 4 <= int(*stopped) < 12
    assert (workdir / "checkpoints" / stopped.pop()).is_dir()


@pytest.mark.parametrize("killed", [1, pytest.param(0, marks=pytest.mark.full)])
def test_when_one_is_killed_the_others_end_and_the_same_command_goes_on(
    gin_file: Path, tmp_path: Path, whole: Whole, killed: int
) -> None:
    workdir = tmp_path / "run"
    command = train_command(gin_file, workdir, *SETTINGS)
    commands = [command, command]
    killing = SENDS_ITSELF.format(step=8, number=int(signal.SIGKILL), seconds_to_end=0)
    commands[killed] = ["-c", killing, *command[2:]]
    processes = start_processes(commands, 2, HYLA_LM_SILENCE_SECONDS=SILENCE)
    assert processes[killed].wait(timeout=300) == -signal.SIGKILL
    died = time.monotonic()
    other = processes[1 - killed]
    error = other.communicate(timeout=60)[1]
    assert time.monotonic() - died < SECONDS_TO_END
    if killed or other.returncode != -signal.SIGABRT:  # JAX's, when process 0 dies
        assert other.returncode == UNAVAILABLE, error
        assert re.search(rf"process {killed}.* has (disconnected|not answered).*; the same", error)
    assert not (workdir / "summary.json").exists()

    finished = run_processes([command] * 2, 2)
    assert [status for status, _, _ in finished] == [0, 0], finished
    assert measured(workdir) == whole.lines


def test_processes_that_disagree_do_not_start(gin_file: Path, tmp_path: Path) -> None:
    commands = [train_command(gin_file, tmp_path / "run", f"LogConfig.every={n}") for n in (3, 4)]
    for status, _, error in run_processes(commands, 1):
        assert status == 2
        assert "process 1 runs with another configuration than process 0" in error


def test_a_workdir_that_is_not_shared_is_an_error_at_once(gin_file: Path, tmp_path: Path) -> None:
    disks = [tmp_path / f"disk_{index}" for index in range(2)]
    for disk in disks:
        disk.mkdir()
    command = train_command(gin_file, "run")
    for status, output, error in run_processes([command] * 2, 1, disks):
        assert status == 2
        assert "process 1 does not see what process 0 writes to --workdir=run" in error
        assert "step" not in output
    assert sorted(path.name for path in tmp_path.glob("*/**/*")) == [".lock", "run"]


@pytest.mark.full
def test_processes_train_in_a_bucket(gin_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
    alone = tmp_path / "alone"
    run_alone(gin_file, alone, "MeshConfig.fsdp=2")
    with FakeBucket() as store:
        store.buckets_can_be_seen = True
        command = train_command(gin_file, "gs://bucket/run", "MeshConfig.fsdp=2")
        finished = run_processes([command] * 2, 2, **store.environment)
        assert [status for status, _, _ in finished] == [0, 0], finished
        (tmp_path / "metrics.jsonl").write_bytes(store.objects["bucket/run/metrics.jsonl"])
    assert_same_losses(tmp_path, alone)
    states = [name for name in store.objects if "/checkpoints/12/state/ocdbt.process_" in name]
    assert {name.split("ocdbt.process_")[1][0] for name in states} == {"0", "1"}
