"""Trains the runs of a sweep: a process each, so many at once, until all ended or it must stop."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hyla_lm.ending import DONE, STOPPED
from hyla_lm.sweeps.runs import Run

OWN_LINE = "hyla-lm: "
PROGRESS = re.compile(r"step \d+/")
MOST_LINES = 10
PROGRAMS = ".programs"
CACHE = "JAX_COMPILATION_CACHE_DIR"


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


class Children(AbstractContextManager["Children"]):
    """The processes that train; `stop`, and the end of the block, asks them to save and end."""

    def __init__(self, workdir: str, say: Callable[[str], None]):
        self._environment = {
            CACHE: os.path.abspath(f"{workdir}/{PROGRAMS}"),
            **os.environ,
            "PYTHONUNBUFFERED": "1",  # or what it printed would follow what it said at its end
        }
        self._say = say
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self.is_stopping = False

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
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
                [sys.executable, "-m", "hyla_lm", "train", *run.arguments],
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
    runs: Sequence[Run], train: Callable[[Run], Ended | None], at_once: int
) -> Generator[tuple[Run, Ended], None, None]:
    """Trains runs, so many at once, and yields each as it ends; those not begun are left out."""
    with ThreadPoolExecutor(at_once) as pool:
        futures: dict[Future[Ended | None], Run] = {pool.submit(train, run): run for run in runs}
        try:
            for future in as_completed(futures):
                ended = future.result()
                if ended is not None:
                    yield futures[future], ended
        finally:
            for future in futures:
                future.cancel()
