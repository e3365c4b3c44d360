"""Ends a run that hangs: says what it waits for, with the stacks of all threads on stderr."""

import faulthandler
import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hyla_lm.ending import UNAVAILABLE
from hyla_lm.parallel import processes
from hyla_lm.signals import RESUMES

STDERR = 2


class Watchdog:
    """Ends this process with status 69 when it has waited for one thing for so many seconds.

    Call `waits_for` before each thing that is waited for; the call is the progress that is watched.
    0 seconds never end it.
    """

    def __init__(self, seconds: float):
        self._seconds = seconds
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
        """Writes the stacks and ends the process; never returns."""
        faulthandler.dump_traceback(STDERR, all_threads=True)
        reason = f"no progress for {self._seconds:g} s: {self._waits_for}"
        processes.end(f"{reason}; {RESUMES}", UNAVAILABLE)
