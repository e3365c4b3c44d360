"""Ends a run that hangs: says what it waits for, with the stacks of all threads on stderr."""

import faulthandler
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hyla_lm.ending import UNAVAILABLE
from hyla_lm.parallel import processes
from hyla_lm.signals import RESUMES

STDERR = 2
TURNS = 100  # of the thread that watches, in the longest wait


class Watchdog:
    """Ends this process with status 69 when it has waited for one thing for so many seconds.

    Call `waits_for` before each thing that is waited for; the call is the progress that is watched.
    It counts how often it wakes, so that time in which the process was stopped, as by SIGSTOP, does
    not count. 0 seconds never end it.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._waits_for = "the start waits for the other processes"
        self._progress, self._is_paused = 0, False
        self._closed = threading.Event()
        if seconds:
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def waits_for(self, what: str) -> None:
        """Says where the run is and what it waits for, such as "step 301 waits for data"."""
        self._waits_for, self._progress = what, self._progress + 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Does not watch what the block does."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def _watch(self) -> None:
        idle, seen = 0, self._progress
        while idle < TURNS:
            if self._closed.wait(self._seconds / TURNS):
                return
            idle = 0 if self._is_paused or seen != self._progress else idle + 1
            seen = self._progress
        self._end()

    def _end(self) -> None:
        """Writes the stacks and ends the process; never returns."""
        faulthandler.dump_traceback(STDERR, all_threads=True)
        reason = f"no progress for {self._seconds:g} s: {self._waits_for}"
        processes.end(f"{reason}; {RESUMES}", UNAVAILABLE)
