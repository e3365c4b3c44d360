"""A run that hangs says what it waits for, with its stacks, and ends; a slow one trains on."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hyla_lm.ending import UNAVAILABLE
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.watchdog import Watchdog
from tests import preloaded
from tests.parallel.running import run_processes
from tests.run_lines import measured
from tests.tiny_runs import arguments, train, write_gin

SECONDS = 10
# Trains on a device that takes forever with its sixth step.
LAUNCHER = """
import sys, time
from dataclasses import replace
import jax
from hyla_lm.cli.main import main
from hyla_lm.run import run

compile_step = run.compile_step

def never_ends(*_):
    time.sleep(10**6)

def program_on_a_device_that_stops(*given):
    program = compile_step(*given)
    stop = jax.jit(lambda x: jax.pure_callback(never_ends, x, x))

    def train_step(state, batch):
        number = int(state.step)
        state, output = program.train_step(state, batch)
        if number == 5:
            output = replace(output, objective=(stop(output.objective[0]), output.objective[1]))
        return state, output

    return replace(program, train_step=train_step)

run.compile_step = program_on_a_device_that_stops
sys.exit(main(sys.argv[1:]))
"""


def test_a_run_that_hangs_is_ended_with_the_reason_and_can_be_resumed(
    tiny_rows: Rows, tmp_path: Path
) -> None:
    gin_file, whole, workdir = write_gin(tmp_path, tiny_rows), tmp_path / "whole", tmp_path / "run"
    assert train(gin_file, whole) == 0  # it compiles the program of the other
    command = arguments(gin_file, workdir, f"TrainConfig.hang_seconds = {SECONDS}")
    done = preloaded.run(
        [sys.executable, "-c", LAUNCHER, *command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == UNAVAILABLE, done.stderr
    stacks, _, sentence = done.stderr.rstrip().rpartition("\n")
    assert sentence == (
        f"hyla-lm: no progress for {SECONDS} s: step 6 waits for the device; "
        "the same command resumes from the newest checkpoint"
    )
    assert "in never_ends" in stacks and "in train" in stacks and "in _watch" in stacks
    assert train(gin_file, workdir) == 0
    assert measured(workdir) == measured(whole)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the watchdogs of this process would have ended it for."""
    places: list[str] = []
    monkeypatch.setattr(Watchdog, "_end", lambda self: places.append(self._waits_for))
    yield places


def test_progress_keeps_a_run_alive(ended: list[str]) -> None:
    with closing(Watchdog(0.5)) as watchdog:
        for step in range(10):
            watchdog.waits_for(f"step {step} waits for data")
            time.sleep(0.1)
        assert ended == []
        time.sleep(1)
        assert ended == ["step 9 waits for data"]


def test_nothing_is_watched_in_a_pause_or_after_the_end(ended: list[str]) -> None:
    """An error ends a pause too."""
    watchdog = Watchdog(0.3)
    with pytest.raises(UserError), watchdog.paused():
        time.sleep(0.8)
        raise UserError
    assert ended == []
    time.sleep(0.8)
    assert len(ended) == 1
    watchdog = Watchdog(0.3)
    watchdog.close()
    time.sleep(0.8)
    assert len(ended) == 1


def test_the_time_in_which_a_process_was_stopped_does_not_count() -> None:
    waits = "from hyla_lm.run.watchdog import Watchdog; Watchdog(3); print(flush=True); input()"
    command, pipe = [sys.executable, "-c", waits], subprocess.PIPE
    with preloaded.Popen(command, stdin=pipe, stdout=pipe) as process:
        process.stdout.readline()
        for number, seconds in ((signal.SIGSTOP, 4), (signal.SIGCONT, 0.5)):
            process.send_signal(number)
            time.sleep(seconds)
        process.communicate(b"\n")
    assert process.returncode == 0


POD = """
import sys, time
from hyla_lm.parallel import processes
from hyla_lm.run.watchdog import Watchdog

with processes.joined("runs/mine"):
    processes.barrier("the middle")
    if sys.argv[1] == "hang":
        Watchdog(1).waits_for("step 3 waits for data")
        time.sleep(300)
    while True:
        processes.gather(1)
"""


def test_the_others_of_a_pod_end_with_the_one_that_hangs() -> None:
    acts = [["-c", POD, act] for act in ("work", "hang")]
    (status, _, error), (own_status, _, own_error) = run_processes(acts, 1)
    assert status == own_status == UNAVAILABLE
    assert "no progress for 1 s: step 3 waits for data" in own_error
    assert re.search(r"hyla-lm: process 1 \(\S+\) ended: no progress for 1 s: step 3 waits", error)
