"""A run that hangs says what it waits for, leaves its stacks, and ends; a slow one trains on."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from etils import epath

from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.watchdog import EXIT_STATUS, Watchdog
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
    assert done.returncode == EXIT_STATUS, done.stderr
    reason = f"no progress for {SECONDS} s: step 6 waits for the device"
    assert done.stderr == (
        f"hyla-lm: {reason}; stacks of all threads are in {workdir}/hang.txt; the same command "
        "resumes from the newest checkpoint\n"
    )
    stacks = (workdir / "hang.txt").read_text()
    assert reason in stacks.splitlines()[0]
    assert "in never_ends" in stacks and "in train" in stacks
    assert "in _watch" in stacks and stacks.count("hread 0x") > 2
    assert train(gin_file, workdir) == 0
    assert measured(workdir) == measured(whole)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the watchdogs of this process would have ended it for."""
    places: list[str] = []
    monkeypatch.setattr(Watchdog, "_end", lambda self: places.append(self._waits_for))
    yield places


def test_progress_keeps_a_run_alive(ended: list[str], tmp_path: Path) -> None:
    with closing(Watchdog(0.5, epath.Path(tmp_path))) as watchdog:
        for step in range(10):
            watchdog.waits_for(f"step {step} waits for data")
            time.sleep(0.1)
        assert ended == []
        time.sleep(1)
        assert ended == ["step 9 waits for data"]


def test_nothing_is_watched_in_a_pause_or_after_the_end(ended: list[str], tmp_path: Path) -> None:
    """An error ends a pause too."""
    watchdog = Watchdog(0.3, epath.Path(tmp_path))
    with pytest.raises(UserError), watchdog.paused():
        time.sleep(0.8)
        raise UserError
    assert ended == []
    time.sleep(0.8)
    assert len(ended) == 1
    watchdog = Watchdog(0.3, epath.Path(tmp_path))
    watchdog.close()
    time.sleep(0.8)
    assert len(ended) == 1


def test_0_seconds_never_end_a_run(ended: list[str], tmp_path: Path) -> None:
    with closing(Watchdog(0, epath.Path(tmp_path))):
        assert "watchdog" not in {thread.name for thread in threading.enumerate()}
        time.sleep(0.2)
    assert ended == []


ALONE = """
import sys, time
from etils import epath
from hyla_lm.run import watchdog

watchdog.WRITE_SECONDS = 0.5
if sys.argv[2] == "hangs":
    watchdog.write_whole = lambda *_: time.sleep(10**6)
watchdog.Watchdog(0.5, epath.Path(sys.argv[1]))
time.sleep(10**6)
"""


@pytest.mark.parametrize(
    ("disk", "why"), [("gone", "cannot be written ("), ("hangs", "takes too long to be written;")]
)
def test_a_folder_that_hangs_too_does_not_keep_the_process(
    disk: str, why: str, tmp_path: Path
) -> None:
    folder = tmp_path if disk == "hangs" else tmp_path / "gone"
    command = [sys.executable, "-c", ALONE, str(folder), disk]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == EXIT_STATUS
    assert f"; {folder}/hang.txt {why}" in done.stderr and len(done.stderr.splitlines()) == 1


POD = """
import sys, time
from etils import epath
from hyla_lm.parallel import processes
from hyla_lm.run.watchdog import Watchdog

with processes.joined("runs/mine"):
    processes.barrier("the middle")
    if sys.argv[1] == "hang":
        Watchdog(1, epath.Path(sys.argv[2])).waits_for("step 3 waits for data")
        time.sleep(300)
    while True:
        processes.gather(1)
"""


def test_the_others_of_a_pod_end_with_the_one_that_hangs(tmp_path: Path) -> None:
    acts = [["-c", POD, act, str(tmp_path)] for act in ("work", "hang")]
    (status, _, error), (own_status, _, own_error) = run_processes(acts, 1)
    assert status == own_status == EXIT_STATUS
    assert "no progress for 1 s: step 3 waits for data" in own_error
    assert re.search(r"hyla-lm: process 1 \(\S+\) ended: no progress for 1 s: step 3 waits", error)
    assert "time.sleep" not in error and (tmp_path / "hang.1.txt").exists()
