"""However a run ends, it ends soon, says why in a few lines, and keeps what it saved."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED, UNAVAILABLE
from tests.faults.runs import Command, Running
from tests.tiny_runs import saved_steps

PATIENCE_SECONDS = 120
ENDLESS = [
    "TrainConfig.steps=1000000",
    "TrainConfig.eval_every=1000000",
    "CheckpointConfig.every=1000000",
    "Rows.verify=off",
]
# What is called before training, and what makes the command take long there.
SLOW = """
import signal, sys, time
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
from hyla_lm import ending
from hyla_lm.cli import main as cli
{patch}
ending.process(cli.main)
"""
IN_START_UP = (
    "import hyla_lm.train as t\nt.RunFolder.check_shared = lambda folder: time.sleep(1000)"
)
IN_COMPILATION = "import hyla_lm.run.run as r\nr.compile_step = lambda program: time.sleep(1000)"
IN_A_STEP = """
import hyla_lm.run.run as r
r.StepLog.record = lambda *arguments: time.sleep(1000)
"""
OUTPUT_GOES = """
import os
import hyla_lm.run.run as r
begin = r.RunStore.begin
def begin_and_lose_output(*given):
    reading, writing = os.pipe()
    os.close(reading)
    os.dup2(writing, 1)
    begin(*given)
r.RunStore.begin = begin_and_lose_output
"""
READING_FAILS = """
from concurrent.futures import BrokenExecutor
from hyla_lm.input.row_stream import RowStream
read = RowStream.__next__
def fail(stream):
    if stream.get_state()["rows_read"] == 40:
        raise BrokenExecutor("terminated abruptly")
    return read(stream)
RowStream.__next__ = fail
"""
INTERRUPTIONS = {  # a signal or a patch, the status, and how the first line begins
    "Ctrl-C": (signal.SIGINT, "", STOPPED, "interrupted"),
    "terminal lost": (signal.SIGHUP, "", STOPPED, "interrupted"),
    "output lost": (0, OUTPUT_GOES, STOPPED, "the output cannot be written (Broken pipe)"),
    "reading fails": (0, READING_FAILS, UNAVAILABLE, "the system killed a helper process"),
}
IN_A_SAVE = """
import orbax.checkpoint as ocp
ocp.CheckpointManager.wait_until_finished = lambda manager: time.sleep(1000)
"""
FAILS_AFTER_A_SAVE = """
import hyla_lm.run.run as r
from hyla_lm.errors import UserError
begun = r.RunStore.save
def save(store, step, state, data):
    begun(store, step, state, data)
    {then}
    raise {error}
r.RunStore.save = save
"""


def running(gin_file: Path, home: Path, patch: str, *bindings: str) -> Running:
    """hyla-lm train as a separate process, in a folder of its own."""
    programs = Path(os.environ.get("JAX_COMPILATION_CACHE_DIR", gin_file.with_name("programs")))
    command = Command(gin_file, programs, bindings)
    return Running(command, home / "run", start=("-c", SLOW.format(patch=patch)))


def wait_for(run: Running, path: str) -> None:
    """Waits until a file of the run is there."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(run.workdir.parent.glob(path)):
        assert run.is_alive and time.monotonic() < deadline, run.errors()
        time.sleep(0.02)


def end(run: Running) -> tuple[int, list[str], float]:
    """Status, lines on stderr, and how long it took to end."""
    started = time.monotonic()
    status = run.ended(PATIENCE_SECONDS)
    return status, run.errors().splitlines(), time.monotonic() - started


@pytest.mark.parametrize("how", INTERRUPTIONS)
def test_whatever_interrupts_a_run_it_saves_first(how: str, tiny_gin: Path, tmp_path: Path) -> None:
    number, patch, status, first = INTERRUPTIONS[how]
    run = running(tiny_gin, tmp_path, patch, *ENDLESS)
    if number:
        wait_for(run, "run/metrics.jsonl")
        run.send(number)
    found, lines, seconds = end(run)
    assert found == status and lines[0].startswith(f"hyla-lm: {first}"), lines
    (step,) = saved_steps(run.workdir)
    saved = f"hyla-lm: stopped after step {step}, which is saved; the same command resumes"
    assert lines[-1] == (saved if status == STOPPED else lines[0])
    assert seconds < 30 or not number


@pytest.mark.parametrize("patch", [IN_START_UP, IN_COMPILATION], ids=["start", "compilation"])
def test_a_request_before_training_ends_at_once(patch: str, tiny_gin: Path, tmp_path: Path) -> None:
    run = running(tiny_gin, tmp_path, patch, *ENDLESS)
    wait_for(run, "run" if patch == IN_START_UP else "run/checkpoints")
    time.sleep(0.5)
    run.send(signal.SIGTERM)
    status, lines, seconds = end(run)
    assert (status, lines) == (
        STOPPED,
        ["hyla-lm: stopped; the same command resumes"],
    )
    assert seconds < 5


def test_an_interruption_of_a_stop_ends_at_once(tiny_gin: Path, tmp_path: Path) -> None:
    run = running(tiny_gin, tmp_path, IN_A_SAVE, *ENDLESS)
    wait_for(run, "run/metrics.jsonl")
    run.send(signal.SIGTERM)
    time.sleep(1)
    run.send(signal.SIGTERM)  # as a cloud and its launcher do
    time.sleep(1)
    assert run.is_alive
    run.send(signal.SIGINT)
    status, lines, seconds = end(run)
    assert (status, lines[-1]) == (
        128 + signal.SIGINT,
        "hyla-lm: ended at once; the same command resumes from the newest checkpoint",
    )
    assert seconds < 5


def test_a_run_that_cannot_save_ends_within_its_time(tiny_gin: Path, tmp_path: Path) -> None:
    run = running(tiny_gin, tmp_path, IN_A_STEP, *ENDLESS, "CheckpointConfig.stop_seconds=2")
    wait_for(run, "run/events.*")
    time.sleep(1)
    run.send(signal.SIGTERM)
    status, lines, seconds = end(run)
    assert (status, lines[-1]) == (
        STOPPED,
        "hyla-lm: interrupted, and not saved within 2 s; "
        "the same command resumes from the newest checkpoint",
    )
    assert 1 < seconds < 15


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        ("ValueError('no such thing')", 1, "hyla-lm: ValueError: no such thing"),
        ("UserError('mend it.')", 2, "hyla-lm: mend it."),
    ],
)
def test_an_error_lets_the_save_under_way_end(
    error: str, status: int, says: str, tiny_gin: Path, tmp_path: Path
) -> None:
    run = running(tiny_gin, tmp_path, FAILS_AFTER_A_SAVE.format(error=error, then=""))
    found, lines, _ = end(run)
    assert (found, lines[0]) == (status, says)
    assert saved_steps(run.workdir) == [5]


def test_an_error_does_not_wait_for_a_save_that_hangs(tiny_gin: Path, tmp_path: Path) -> None:
    then = IN_A_SAVE.strip().replace("\n", "; ")
    patch = FAILS_AFTER_A_SAVE.format(error="UserError('mend it.')", then=then)
    run = running(tiny_gin, tmp_path, patch, "CheckpointConfig.stop_seconds=2")
    wait_for(run, "run/events.*")
    status, lines, seconds = end(run)
    assert status == 2
    assert lines == ["hyla-lm: mend it.", "  a save under way did not end within 2 s"]
    assert seconds < PATIENCE_SECONDS / 2


def test_a_full_disk_is_one_sentence(tiny_gin: Path, tmp_path: Path) -> None:
    """A file system of 300 kB, which needs root to be made."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("a small disk needs the right to mount one")
    try:
        run = running(tiny_gin, small, "", "CheckpointConfig.every=1")
        status, lines, _ = end(run)
        assert status == 2, lines
        assert len(lines) <= 10, lines
        assert str(run.workdir) in lines[0] and "No space left on device" in lines[0], lines
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)
    assert os.path.isdir(small)
