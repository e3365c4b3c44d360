"""Ends a run that hangs: says what it waits for, and leaves the stacks of all threads."""

import faulthandler
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from etils import epath

from hyla_lm.ending import reason_of
from hyla_lm.parallel import processes
from hyla_lm.signals import RESUMES
from hyla_lm.storage import write_whole

EXIT_STATUS = 69  # EX_UNAVAILABLE: the same command resumes
WRITE_SECONDS = 30.0  # how long the stacks may take to be written: the disk may hang too


class Watchdog:
    """Ends this process with status 69 when it has waited for one thing for so many seconds.

    Call `waits_for` before each thing that is waited for; the call is the progress that is watched.
    0 seconds never end it.
    """

    def __init__(self, seconds: float, folder: epath.Path):
        index = jax.process_index()
        self._seconds = seconds
        self._path = folder / (f"hang.{index}.txt" if index else "hang.txt")
        self._waits_for, self._since = "the start waits for the other processes", time.monotonic()
        self._closed = threading.Event()
        if seconds:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def waits_for(self, what: str) -> None:
        """Says where the run is and what it waits for, such as "step 301 waits for data"."""
        self._waits_for, self._since = what, time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch what the block does."""
        self._since = math.inf
        try:
            yield
        finally:
            self._since = time.monotonic()

    def _watch(self) -> None:
        while (left := self._since + self._seconds - time.monotonic()) > 0:
            if self._closed.wait(min(left, self._seconds)):
                return
        self._end()

    def _end(self) -> None:
        """Writes the stacks, unless that hangs too, and ends the process; never returns."""
        sentence = f"no progress for {self._seconds:g} s: {self._waits_for}"
        late = f"{sentence}; {self._path} takes too long to be written; {RESUMES}"
        clock = threading.Timer(WRITE_SECONDS, processes.end, [late, EXIT_STATUS])
        clock.daemon = True
        clock.start()
        try:
            with tempfile.TemporaryFile() as file:
                faulthandler.dump_traceback(file, all_threads=True)
                file.seek(0)
                now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
                write_whole(self._path, f"{now}: {sentence}\n\n".encode() + file.read())
            where = f"stacks of all threads are in {self._path}"
        except Exception as error:
            where = f"{self._path} cannot be written ({reason_of(error)})"
        processes.end(f"{sentence}; {where}; {RESUMES}", EXIT_STATUS)
