"""Trains the runs of a sweep: a process each, so many at once, until all ended or it must stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from hyla_lm.ending import DONE, STOPPED
from hyla_lm.errors import UserError
from hyla_lm.run.lock import DiskLock
from hyla_lm.storage import as_path, bucket_of
from hyla_lm.tools.sweep.results import Metric
from hyla_lm.tools.sweep.runs import Run

OWN_LINE = "hyla-lm: "
PROGRESS = re.compile(r"step \d+/")
PROGRAMS = ".programs"
CACHE = "JAX_COMPILATION_CACHE_DIR"
CACHED_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # or what a run printed would follow its last sentence
TRAIN = (sys.executable, "-m", "hyla_lm", "train")


@contextmanager
def locked(workdir: str) -> Iterator[None]:
    """Makes and locks the folder of a sweep; raises UserError for one that cannot be."""
    if bucket_of(workdir):
        raise UserError(
            f"--workdir={workdir} must be a folder of a disk where this command trains: give one."
        )
    try:
        Path(workdir).mkdir(parents=True, exist_ok=True)
        if Path(workdir, "config.gin").exists():
            raise UserError(f"--workdir={workdir} is the folder of a run: give another one.")
        lock = DiskLock(as_path(workdir))
    except OSError as error:
        raise UserError(
            f"--workdir={workdir} cannot be used ({error.strerror}): give another folder."
        ) from error
    try:
        yield
    finally:
        lock.release()


class Processes:
    """Trains each run in a process, started by `command` and the arguments of the run."""

    def __init__(self, command: Sequence[str], workdir: str, show: Callable[[str], None]):
        self._command = command
        # Compiled programs are shared by the runs, unless the user has a cache.
        cache = {CACHE: os.path.abspath(f"{workdir}/{PROGRAMS}"), CACHED_FROM: "0"}
        shared = {} if CACHE in os.environ else cache
        self._environment = {**shared, **os.environ, **UNBUFFERED}
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

    def train(self, run: Run) -> str:
        """Trains a run to its end or until `stop`; returns why it failed, or nothing.

        Its output goes to NAME.txt, and its progress is shown.
        """
        Path(run.workdir).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run.workdir}.txt", "a") as log:
            process = self._start(run)
            if process is None:
                return ""
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
        if status in (DONE, STOPPED) or was_stopped:
            return ""
        return sentence or f"its process ended with status {status}"

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
    processes: Processes,
    at_once: int,
    show: Callable[[str], None],
) -> dict[str, str]:
    """Trains the runs that are not finished, so many at once; returns why some failed, by name.

    Raises UserError, after it has stopped the others, if a run has no such metric.
    """
    to_do = [run for run in runs if not run.summary()]
    show(f"{len(runs)} runs, {len(runs) - len(to_do)} of them finished")
    failures = {}
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(processes.train, run): run for run in to_do}
        try:
            for future in as_completed(futures):
                run, failure = futures[future], future.result()
                if failure:
                    failures[run.name] = failure
                    show(f"{run.name}: failed: {failure}")
                elif summary := run.summary():
                    show(f"{run.name}: finished, {metric.name} {metric.of(summary):.4f}")
        finally:
            processes.stop()  # where all have ended, this stops none
    return failures
