"""Trains the runs of a sweep: a process each, so many at once, until all ended or it must stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hyla_lm.ending import DONE, STOPPED
from hyla_lm.tools.sweep.runs import Run

OWN_LINE = "hyla-lm: "
PROGRESS = re.compile(r"step \d+/")
MOST_LINES = 10
PROGRAMS = ".programs"
CACHE = "JAX_COMPILATION_CACHE_DIR"
CACHED_FROM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # or what a run printed would follow its last sentence
TRAIN = (sys.executable, "-m", "hyla_lm", "train")


@dataclass(frozen=True)
class Ended:
    """The status of a run's process, and what it said of it in a few lines."""

    status: int
    said: str = ""

    @property
    def is_finished(self) -> bool:
        return self.status == DONE

    @property
    def is_stopped(self) -> bool:
        return self.status == STOPPED

    @property
    def reason(self) -> str:
        """Why it failed, in a line."""
        killed = f"its process was killed by signal {-self.status}"
        without = killed if self.status < 0 else f"its process ended with status {self.status}"
        return self.said.partition("\n")[0] or without


class Children:
    """The processes that train, started by `command` and the arguments of a run."""

    def __init__(self, command: Sequence[str], workdir: str, say: Callable[[str], None]):
        self._command = command
        self._environment = {**_cache(workdir), **os.environ, **UNBUFFERED}
        self._say = say
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.is_stopping = False

    def stop(self) -> None:
        """Asks the runs to save and end; no other begins."""
        with self._lock:
            self.is_stopping = True
            for process in self._running:
                process.send_signal(signal.SIGTERM)

    def train(self, run: Run) -> Ended | None:
        """Trains a run; None if it was asked to stop before. Its output goes to NAME.txt."""
        Path(run.workdir).parent.mkdir(parents=True, exist_ok=True)
        with open(f"{run.workdir}.txt", "a") as log:
            process = self._start(run)
            if process is None:
                return None
            said = self._follow(process, run, log)
            status = process.wait()
        with self._lock:
            self._running.discard(process)
            was_asked = self.is_stopping
        return Ended(STOPPED if was_asked and status == -signal.SIGTERM else status, said)

    def _start(self, run: Run) -> subprocess.Popen[str] | None:
        with self._lock:
            if self.is_stopping:
                return None
            process = subprocess.Popen(
                [*self._command, *run.arguments],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                process_group=0,  # Ctrl-C reaches this process alone, which asks the others
            )
            self._running.add(process)
        return process

    def _follow(self, process: subprocess.Popen[str], run: Run, log: IO[str]) -> str:
        """Keeps what a run prints and tells its steps; returns what it said last of itself."""
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            log.write(line)
            log.flush()
            if line.startswith(OWN_LINE):
                said = []
            if line.startswith(OWN_LINE) or said:
                said.append(line.rstrip())
            if PROGRESS.match(line):
                self._say(f"{run.name}: {line.rstrip()}")
        return "\n".join(said[:MOST_LINES]).removeprefix(OWN_LINE)


def train_all(
    runs: Sequence[Run],
    train: Callable[[Run], Ended | None],
    stop: Callable[[], None],
    at_once: int,
) -> Generator[tuple[Run, Ended], None, None]:
    """Trains runs, so many at once, and yields each as it ends; those not begun are left out.

    Closing it stops the others first.
    """
    with ThreadPoolExecutor(at_once) as pool:
        futures: dict[Future[Ended | None], Run] = {pool.submit(train, run): run for run in runs}
        try:
            for future in as_completed(futures):
                ended = future.result()
                if ended is not None:
                    yield futures[future], ended
        finally:
            stop()
            for future in futures:
                future.cancel()


def _cache(workdir: str) -> dict[str, str]:
    """The cache of compiled programs that the runs share, unless the user has one."""
    if CACHE in os.environ:
        return {}
    return {CACHE: os.path.abspath(f"{workdir}/{PROGRAMS}"), CACHED_FROM: "0"}
