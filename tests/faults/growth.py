"""What grows in a long run that is killed often: memory, CPU time of a step, files and bytes.

Each part of the run between two kills has a twin beside it: the run as it was after the first kill
goes on from there again. Ratios are of a part to its twin at equal steps since the start of the
process, so that what else the machine does in these minutes changes them little.
"""

import json
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader

from hyla_lm.logs.tensorboard import SETTINGS
from hyla_lm.run.folder import EVENTS
from hyla_lm.run.summary import LEARNING_RATE
from tests.faults.phased_train import measured_path
from tests.faults.runs import Command, Running

TWIN_STEPS = 400
WATCH_SECONDS = 0.01
LONGEST_SECONDS = 3600.0  # of the unbroken run


class Measured(NamedTuple):
    """A process at a step: steps since its start, its CPU seconds, its memory in kilobytes."""

    step: int
    done: int
    cpu: float
    resident: int
    peak: int


class Folder(NamedTuple):
    """What a run's folder holds beside checkpoints and curves, and of these how many."""

    files: int
    checkpoints: int
    events: int


@dataclass(frozen=True)
class Pair:
    """A part of the run and its twin, and the folder after it."""

    part: list[Measured]
    twin: list[Measured]
    folder: Folder


class Growth:
    """A run of many steps, killed and started again, with the twins of its parts."""

    def __init__(self, command: Command, steps: int, kills: int, home: Path, seed: int):
        self._command, self._steps, self._kills, self._home = command, steps, kills, home
        self._rng = random.Random(seed)
        self.workdir, self.whole_workdir = home / "killed", home / "whole"
        home.mkdir(parents=True)

    def whole(self) -> list[Measured]:
        """The same run in one process."""
        return self._start("whole", self.whole_workdir).ended()

    def pairs(self) -> list[Pair]:
        """All parts but the first, which begins at step 0, and the last."""
        part = self._steps // (self._kills + 1)
        first = self._start("part1", self.workdir)
        self._kill(first, lambda last: last.step >= part)
        shutil.copytree(self.workdir, self._home / "first")
        return [self._pair(number, number * part) for number in range(2, self._kills + 1)]

    def last(self) -> None:
        """The part after the last kill, which ends the run."""
        self._start("last", self.workdir).ended()

    def _pair(self, number: int, step: int) -> Pair:
        again = self._home / "again"
        shutil.copytree(self._home / "first", again)
        part = self._start(f"part{number}", self.workdir)
        twin = self._start(f"twin{number}", again)
        of_twin = self._kill(twin, lambda last: last.done >= TWIN_STEPS)
        of_part = self._kill(part, lambda last: last.step >= step)
        shutil.rmtree(again)
        folder = folder_of(self.workdir)
        print(f"killed {number} times, at step {of_part[-1].step}; {folder}", flush=True)
        return Pair(of_part, of_twin, folder)

    def _start(self, name: str, workdir: Path) -> "Part":
        return Part(self._command, workdir, self._home / f"{name}.phases")

    def _kill(self, part: "Part", is_due: Callable[[Measured], bool]) -> list[Measured]:
        """Kills the process soon after a measurement."""
        part.wait_until(is_due)
        time.sleep(self._rng.uniform(0, 0.3))
        return part.killed()


class Part:
    """A training process that is measured."""

    def __init__(self, command: Command, workdir: Path, phases: Path):
        self._phases, self._running = phases, Running(command, workdir, phases)

    def wait_until(self, is_due: Callable[[Measured], bool]) -> None:
        while self._running.is_alive:
            found = measured(self._phases)
            if found and is_due(found[-1]):
                return
            time.sleep(WATCH_SECONDS)

    def killed(self) -> list[Measured]:
        self._running.send(signal.SIGKILL)
        return self._with_status(-signal.SIGKILL)

    def ended(self) -> list[Measured]:
        return self._with_status(0)

    def _with_status(self, status: int) -> list[Measured]:
        assert self._running.ended(LONGEST_SECONDS) == status, self._running.errors()
        return measured(self._phases)


def measured(phases: Path) -> list[Measured]:
    path = measured_path(phases)
    lines = path.read_text().splitlines() if path.exists() else []
    return [Measured(*json.loads(line)) for line in lines]


def folder_of(workdir: Path) -> Folder:
    files, events = [path for path in workdir.iterdir() if path.is_file()], events_of(workdir)
    checkpoints = list((workdir / "checkpoints").iterdir())
    return Folder(len(files) - len(events), len(checkpoints), len(events))


def events_of(workdir: Path) -> list[Path]:
    """The event files of each process of a run, in order."""
    return sorted(path for path in workdir.glob(f"{EVENTS}*") if path.name != SETTINGS)


def step_seconds(found: Sequence[Measured]) -> list[float]:
    """CPU seconds of a step between two measurements, each of 100 steps."""
    return [(b.cpu - a.cpu) / (b.done - a.done) for a, b in pairwise(found)]


def of_pairs(pairs: Sequence[Pair]) -> dict[str, float]:
    """Step and memory of the later half of the parts to those of their twins."""
    last = pairs[len(pairs) // 2 :]
    part = quiet([second for pair in last for second in step_seconds(pair.part)])
    twin = quiet([second for pair in last for second in step_seconds(pair.twin)])
    peaks = [peak_of(pair.part) / peak_of(pair.twin) for pair in last]
    return {"step_cpu_seconds": part / twin, "peak": median(peaks)}


def peak_of(found: Sequence[Measured]) -> int:
    return next(sample.peak for sample in found if sample.done == TWIN_STEPS)


def quiet(seconds: Sequence[float]) -> float:
    """The lowest quarter: what disturbs a step only adds to it."""
    return quantiles(seconds, n=4)[0]


def of_whole(found: Sequence[Measured]) -> dict[str, float]:
    """Ratios of the last fifth of one process to its second fifth; the first warms up."""
    fifth = len(found) // 5
    first, last = found[fifth : 2 * fifth], found[-fifth:]
    return {
        "step_cpu_seconds": quiet(step_seconds(last)) / quiet(step_seconds(first)),
        "peak": last[-1].peak / first[-1].peak,
        "resident": median(s.resident for s in last) / median(s.resident for s in first),
    }


def of_lines(workdir: Path) -> dict[str, float]:
    """The bytes of a line with training metrics: the last fifth to the first."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    sizes = [len(line) for line in lines if LEARNING_RATE in line]
    fifth = len(sizes) // 5
    return {"line_bytes": sum(sizes[-fifth:]) / sum(sizes[:fifth])}


def of_curves(workdir: Path) -> dict[str, float]:
    """The bytes of an event: the last fifth of the processes to the first, but for the very first.

    That one wrote the configuration too.
    """
    paths = events_of(workdir)[1:]
    sizes = [
        path.stat().st_size / len(list(RawEventFileLoader(str(path)).Load())) for path in paths
    ]
    fifth = max(1, len(sizes) // 5)
    return {"event_bytes": median(sizes[-fifth:]) / median(sizes[:fifth])}


def as_json(whole: Sequence[Measured], pairs: Sequence[Pair], found: Any) -> dict[str, Any]:
    return {
        "ratios": found,
        "whole": [sample._asdict() for sample in whole],
        "parts": [
            {
                "part": [sample._asdict() for sample in pair.part],
                "twin": [sample._asdict() for sample in pair.twin],
                "folder": pair.folder._asdict(),
            }
            for pair in pairs
        ],
    }
