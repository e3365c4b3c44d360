"""Trains the runs of a sweep: a process each, so many at once, until all ended or it must stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from hyla_lm.ending import DONE, STOPPED
from hyla_lm.tools.sweep.record import Record
from hyla_lm.tools.sweep.results import Metric
from hyla_lm.tools.sweep.runs import Run

OWN_LINE = "hyla-lm: "
PROGRESS = re.compile(r"step \d+/")
PROGRAMS = ".programs"
CACHE = "JAX_COMPILATION_CACHE_DIR"
CACHED_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # or what a run printed would follow its last sentence
TRAIN = (sys.executable, "-m", "hyla_lm", "train")


@dataclass(frozen=True)
class Ended:
    """The status of a run's process, and the last sentence that it printed of itself."""

    status: int
    sentence: str = ""

    @property
    def failure(self) -> str:
        """Why it failed, in a line; empty if it is finished or was stopped."""
        if self.status in (DONE, STOPPED):
            return ""
        killed = f"its process was killed by signal {-self.status}"
        without = killed if self.status < 0 else f"its process ended with status {self.status}"
        return self.sentence or without


class Processes:
    """Trains each run in a process, started by `command` and the arguments of the run."""

    def __init__(self, command: Sequence[str], workdir: str, show: Callable[[str], None]):
        self._command = command
        self._environment = {**_cache(workdir), **os.environ, **UNBUFFERED}
        self._show = show
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_stopping = False

    def stop(self) -> None:
        """Lets the runs save and end; no other begins."""
        with self._lock:
            self._is_stopping = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def train(self, run: Run) -> Ended | None:
        """Trains a run to its end or until `stop`; None if that came before.

        Its output goes to NAME.txt, and its progress is shown.
        """
        Path(run.workdir).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run.workdir}.txt", "a") as log:
            process = self._start(run)
            if process is None:
                return None
            sentence = ""
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                log.flush()
                if line.startswith(OWN_LINE):
                    sentence = line.removeprefix(OWN_LINE).rstrip()
                if PROGRESS.match(line):
                    self._show(f"{run.name}: {line.rstrip()}")
            status = process.wait()
        with self._lock:
            self._running.discard(process)
            # A process that had not begun to train dies of the signal itself.
            was_stopped = self._is_stopping and status == -signal.SIGTERM
        return Ended(STOPPED if was_stopped else status, sentence)

    def _start(self, run: Run) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._is_stopping:
                return None
            process = subprocess.Popen(
                [*self._command, *run.arguments],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # Ctrl-C reaches only this process, which stops the others
            )
            self._running.add(process)
        return process


def train_runs(
    runs: Sequence[Run],
    metric: Metric,
    record: Record,
    processes: Processes,
    at_once: int,
    show: Callable[[str], None],
) -> None:
    """Trains the runs that are not finished, so many at once; records and shows how each ends.

    Raises UserError, after it has stopped the others, if a run has no such metric.
    """
    to_do = [run for run in runs if not run.summary()]
    show(f"{len(runs)} runs, {len(runs) - len(to_do)} of them finished")
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(processes.train, run): run for run in to_do}
        try:
            for future in as_completed(futures):
                run, ended = futures[future], future.result()
                if ended is not None:
                    record.ended(run, ended.failure)
                    show(f"{run.name}: {_outcome(run, metric, ended)}")
        finally:
            processes.stop()  # where all have ended, this stops none


def _outcome(run: Run, metric: Metric, ended: Ended) -> str:
    if ended.status == DONE:
        return f"finished, {metric.name} {metric.of(run.summary()):.4f}"
    return f"failed: {ended.failure}" if ended.failure else "stopped"


def _cache(workdir: str) -> dict[str, str]:
    """The cache of compiled programs that the runs share, unless the user has one."""
    if CACHE in os.environ:
        return {}
    return {CACHE: os.path.abspath(f"{workdir}/{PROGRAMS}"), CACHED_FROM: "0"}
