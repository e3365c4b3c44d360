"""Trains the runs of a sweep, one after the other, until all ended or it must stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
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


class Trainer:
    """Trains runs in processes, each started by `command` and the arguments of the run."""

    def __init__(self, command: Sequence[str], workdir: str, show: Callable[[str], None]):
        self._command = command
        # Compiled programs are shared by the runs, unless the user has a cache.
        cache = {CACHE: os.path.abspath(f"{workdir}/.programs"), CACHED_FROM: "0"}
        shared = {} if CACHE in os.environ else cache
        self._environment = {**shared, **os.environ, **UNBUFFERED}
        self._show = show
        self._lock = threading.Lock()  # a signal is answered in another thread
        self._process: subprocess.Popen[str] | None = None
        self._is_stopping = False

    def stop(self) -> None:
        """Lets the run save and end; no other begins."""
        with self._lock:
            self._is_stopping = True
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)

    def train_all(self, runs: Sequence[Run], metric: Metric) -> dict[str, str]:
        """Trains the runs that are not finished; returns why some failed, by their names.

        Raises UserError if a run has no such metric.
        """
        to_do = [run for run in runs if not run.summary()]
        self._show(f"{len(runs)} runs, {len(runs) - len(to_do)} of them finished")
        failures = {}
        for run in to_do:
            if failure := self._train(run):
                failures[run.name] = failure
                self._show(f"{run.name}: failed: {failure}")
            elif summary := run.summary():
                self._show(f"{run.name}: finished, {metric.name} {metric.of(summary):.4f}")
        return failures

    def _train(self, run: Run) -> str:
        """Trains a run to its end or until `stop`; returns why it failed, or nothing.

        Its output goes to NAME.txt, and its progress is shown.
        """
        Path(run.workdir).parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if self._is_stopping:
                return ""
            process = self._process = subprocess.Popen(
                [*self._command, *run.arguments],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # Ctrl-C reaches only this process, which stops the other
            )
        sentence = ""
        assert process.stdout is not None
        with open(f"{run.workdir}.txt", "a", buffering=1) as log:
            for line in process.stdout:
                log.write(line)
                if line.startswith(OWN_LINE):
                    sentence = line.removeprefix(OWN_LINE).rstrip()
                if PROGRESS.match(line):
                    self._show(f"{run.name}: {line.rstrip()}")
        status = process.wait()
        # A process that had not begun to train dies of the signal itself.
        if status in (DONE, STOPPED) or (self._is_stopping and status == -signal.SIGTERM):
            return ""
        return sentence or f"its process ended with status {status}"
