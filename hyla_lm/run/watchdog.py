"""Ends a run that hangs: says what it waits for, and leaves the stacks of all threads."""

import faulthandler
import math
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
from etils import epath

from hyla_lm.ending import reason_of
from hyla_lm.parallel import processes
from hyla_lm.storage import write_whole

EXIT_STATUS = 69  # EX_UNAVAILABLE: the same command resumes
FRAMES_SHOWN = 6
# How long the stacks may take to be written, and after how long the process ends whatever hangs.
WRITE_SECONDS, LAST_SECONDS = 30.0, 60.0


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
        """Ends the process, even if what hangs here is the disk or stderr; never returns."""
        backstop = threading.Timer(LAST_SECONDS, os._exit, [EXIT_STATUS])
        backstop.daemon = True
        backstop.start()
        frames = _innermost_frames()
        sentence = f"no progress for {self._seconds:g} s: {self._waits_for}"
        path = self._write_stacks(sentence)
        where = f"stacks of all threads are in {path}"
        resumes = "the same command resumes from the newest checkpoint"
        processes.end("\n".join([f"{sentence}; {where}; {resumes}", *frames]), EXIT_STATUS)

    def _write_stacks(self, sentence: str) -> str:
        """Writes the stacks to the run's folder; returns where they are if that does not answer."""
        suffix = f"-{self._path.name}"
        with tempfile.NamedTemporaryFile("w+b", suffix=suffix, delete=False) as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}: {sentence}\n\n".encode())
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        local = Path(file.name)
        writing = ThreadPoolExecutor(1).submit(write_whole, self._path, local.read_bytes())
        try:
            writing.result(WRITE_SECONDS)
        except Exception as error:
            why = f"{self._path.parent} cannot be written to ({reason_of(error)})"
            return f"{local}, since {why}"
        local.unlink()
        return str(self._path)


def _innermost_frames() -> list[str]:
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = traceback.extract_stack(frame)[-FRAMES_SHOWN:]
    return [f"  {entry.filename}:{entry.lineno} in {entry.name}" for entry in reversed(stack)]
