"""A run of 10,000 steps with 20 kills does not grow; `make faults` runs it.

What grows is looked for in memory and CPU time of a step, in files, and in bytes of what is logged.
"""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from hyla_lm.run.folder import EVENTS
from hyla_lm.run.summary import LEARNING_RATE
from tests.faults.kills import write_json
from tests.faults.runs import Command, Running, differences

STEPS, KILLS, LIMIT = 10_000, 20, 1.02
SAME_STEP = 400  # steps of a process after which peaks of memory are compared
WATCH_SECONDS = 0.01
LONGEST_SECONDS = 3600.0  # of the unbroken run
MOST_CHECKPOINTS = 3 + 2  # kept, one to be deleted, one being written
# All divide the steps between two measurements, so that each window holds as many due actions.
PERIODS = (
    f"TrainConfig.steps = {STEPS}",
    "TrainConfig.eval_every = 50",
    "CheckpointConfig.every = 100",
    "LogConfig.every = 10",
)


# The command hyla-lm. Every hundredth step of the process adds a line to a file: the run's step,
# steps since the start, CPU seconds, kilobytes of memory now and at most.
MEASURED_TRAIN = """
import json, sys, time
from pathlib import Path
from hyla_lm.cli import main as cli
from hyla_lm.logs.step_log import StepLog

path, record, done = Path(sys.argv[1]), StepLog.record, 0

def recorded(log, step, *rest):
    global done
    record(log, step, *rest)
    done += 1
    if done % 100 == 0:
        status = Path("/proc/self/status").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in status)
        resident, peak = (int(sizes[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        with path.open("a") as file:
            file.write(json.dumps([step, done, time.process_time(), resident, peak]) + "\\n")

StepLog.record = recorded
sys.argv = ["hyla-lm", *sys.argv[2:]]
cli.entry_point()
"""


class Measured(NamedTuple):
    """A process at a step: steps since its start, its CPU seconds, its memory in kilobytes."""

    step: int
    done: int
    cpu: float
    resident: int
    peak: int


class Process:
    """A training process that is measured every 100 steps."""

    def __init__(self, command: Command, workdir: Path, measurements: Path):
        self._path = measurements
        start = ("-c", MEASURED_TRAIN, str(measurements))
        self._running = Running(command, workdir, start=start)

    def measured(self) -> list[Measured]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [Measured(*json.loads(line)) for line in lines]

    def killed_at(self, is_due: Callable[[Measured], bool], seconds: float) -> list[Measured]:
        """Is killed so many seconds after a measurement."""
        while self._running.is_alive and not any(map(is_due, self.measured()[-1:])):
            time.sleep(WATCH_SECONDS)
        time.sleep(seconds)
        self._running.send(signal.SIGKILL)
        return self._with_status(-signal.SIGKILL)

    def ended(self) -> list[Measured]:
        return self._with_status(0)

    def _with_status(self, status: int) -> list[Measured]:
        assert self._running.ended(LONGEST_SECONDS) == status, self._running.errors()
        return self.measured()


def events_of(workdir: Path) -> list[Path]:
    """The event files of each process of a run, in order."""
    return sorted(workdir.glob(f"{EVENTS}*"))


def step_seconds(found: Sequence[Measured]) -> float:
    """CPU seconds of a step: the lowest quarter, since what disturbs a step only adds to it."""
    seconds = [(b.cpu - a.cpu) / (b.done - a.done) for a, b in pairwise(found)]
    return quantiles(seconds, n=4)[0]


def growth_of_a_process(found: Sequence[Measured]) -> dict[str, float]:
    """Ratios of the last fifth of one process to its second fifth; the first warms up."""
    fifth = len(found) // 5
    first, last = found[fifth : 2 * fifth], found[-fifth:]
    return {
        "step_cpu_seconds": step_seconds(last) / step_seconds(first),
        "peak": last[-1].peak / first[-1].peak,
        "resident": median(s.resident for s in last) / median(s.resident for s in first),
    }


def growth_over_processes(parts: Sequence[Sequence[Measured]]) -> dict[str, float]:
    """The peak of memory after equally many steps: the later half of processes to the others."""
    peaks = [next(s.peak for s in part if s.done == SAME_STEP) for part in parts]
    half = len(peaks) // 2
    return {"peak_of_processes": median(peaks[half:]) / median(peaks[:half])}


def growth_of_files(workdir: Path) -> dict[str, float]:
    """The bytes of a line and of an event: the last fifth to the first.

    The first process is left out of events, since it wrote the configuration too.
    """
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    events = events_of(workdir)[1:]
    sizes = {
        "line_bytes": [float(len(line)) for line in lines if LEARNING_RATE in line],
        "event_bytes": [
            path.stat().st_size / len(list(RawEventFileLoader(str(path)).Load())) for path in events
        ],
    }
    fifths = {name: max(1, len(of) // 5) for name, of in sizes.items()}
    return {
        name: median(of[-fifths[name] :]) / median(of[: fifths[name]]) for name, of in sizes.items()
    }


@pytest.mark.faults
@pytest.mark.timeout(2 * 3600)
def test_a_long_run_that_is_killed_often_does_not_grow(command: Command, tmp_path: Path) -> None:
    long = replace(command, bindings=(*command.bindings, *PERIODS))
    rng = random.Random(int(os.environ.get("SEED", "0")))
    workdir, whole_workdir = tmp_path / "killed", tmp_path / "whole"
    whole = Process(long, whole_workdir, tmp_path / "whole.steps").ended()
    parts, files = [], set()
    for number in range(1, KILLS + 1):
        step = number * STEPS // (KILLS + 1)
        process = Process(long, workdir, tmp_path / f"part{number}.steps")
        parts.append(process.killed_at(lambda last, step=step: last.step >= step, rng.random() / 3))
        events = events_of(workdir)
        files.add(len([path for path in workdir.iterdir() if path.is_file()]) - len(events))
        assert len(events) == number
        assert len(list((workdir / "checkpoints").iterdir())) <= MOST_CHECKPOINTS
        print(f"killed {number} times, at step {parts[-1][-1].step}", flush=True)
    Process(long, workdir, tmp_path / "last.steps").ended()
    ratios = {
        **growth_of_a_process(whole),
        **growth_over_processes(parts),
        **growth_of_files(workdir),
    }
    print(json.dumps(ratios, indent=1))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "growth.json"
    write_json(path, {"ratios": ratios, "whole": whole, "parts": parts})
    assert differences(workdir, whole_workdir, STEPS) == []
    assert len(files) == 1
    assert {name: ratio for name, ratio in ratios.items() if ratio > LIMIT} == {}
