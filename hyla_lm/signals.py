"""Signals that interrupt a run: SIGTERM of clouds, SIGINT of Ctrl-C, SIGHUP of a lost terminal.

A thread reads the signals: Python's own handlers wait for the main thread, which may compile or
wait for a device for minutes.
"""

import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from types import FrameType
from typing import Any, NoReturn

from hyla_lm.ending import STOPPED, say, sentence_of, status_of

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
RESUMES = "the same command resumes from the newest checkpoint"
LAST = b"\0"  # no signal: ends the thread that reads, also where a fork holds the pipe open
KILLED_BY = 128  # and the number of the signal: the status of a shell's killed command


class Signals:
    """Answers SIGNALS for the length of a block; blocks inside it share its answer.

    The first one lets the run save and end, within the time of its guard. Without a guard nothing
    is trained yet, and the process ends at once, as at a SIGINT that follows. A signal that the
    process ignores when the block begins, as after nohup, stays ignored.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._guards: list[float] = []
        self._timers: list[threading.Timer] = []
        self._tell: Callable[[], None] | None = None
        self.is_interrupted = False

    def __enter__(self) -> "Signals":
        self._depth += 1
        if self._depth == 1:
            self._install()
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._uninstall()

    def guard(self, seconds: float, tell: Callable[[], None] | None = None) -> None:
        """From now on an interrupted run has so many seconds; `tell` tells other processes."""
        self._guards.append(seconds)
        self._tell = tell

    def unguard(self) -> None:
        self._guards.pop()

    def interrupt(self, why: str) -> None:
        """Answers as if SIGTERM had come, and says why."""
        say(why)
        os.write(self._writing, bytes([signal.SIGTERM]))

    def end_within(self, seconds: float) -> None:
        """Ends the process after a time, whatever it waits for, unless the block ends before."""
        sentence = f"interrupted, and not saved within {seconds:g} s; {RESUMES}"
        self._timers.append(end_later(seconds, sentence, STOPPED))

    def end_on_error_within(self, seconds: float) -> Callable[..., None]:
        """For an ExitStack: on an error, what it closes then has so many seconds to save."""

        def bound(kind: Any, error: BaseException | None, trace: Any) -> None:
            if error is not None:
                late = f"{sentence_of(error)}\n  a save under way did not end within {seconds:g} s"
                self._timers.append(end_later(seconds, late, status_of(error)))

        return bound

    def _install(self) -> None:
        self.is_interrupted = False
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, _note) for number in heard}
        self._fd_before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._reader = threading.Thread(
            target=self._read, args=(reading,), name="signals", daemon=True
        )
        self._reader.start()

    def _uninstall(self) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.write(self._writing, LAST)
        self._reader.join()  # the last signal may still start its clock
        os.close(self._writing)
        while self._timers:
            self._timers.pop().cancel()

    def _read(self, reading: int) -> None:
        while (byte := os.read(reading, 1)) != LAST:
            if byte[0] in SIGNALS:
                self._answer(byte[0])
        os.close(reading)

    def _answer(self, number: int) -> None:
        guards = list(self._guards)
        if self.is_interrupted and number != signal.SIGINT:
            return  # a cloud and its launcher may both send SIGTERM, a kernel and a shell SIGHUP
        if self.is_interrupted:
            end(f"ended at once; {RESUMES}", KILLED_BY + number)
        if not guards:
            end("stopped; the same command resumes", STOPPED)
        self.end_within(guards[0])
        self.is_interrupted = True
        say("interrupted: it saves and ends; Ctrl-C ends it at once")
        if self._tell is not None:
            self._tell()


_SIGNALS = Signals()


def signals() -> Signals:
    """The signals of this process, to be answered in a `with` block."""
    return _SIGNALS


def end_later(seconds: float, sentence: str, status: int) -> threading.Timer:
    """Ends the process after a time, unless the timer is cancelled before."""
    timer = threading.Timer(seconds, end, [sentence, status])
    timer.daemon = True
    timer.start()
    return timer


def end(sentence: str, status: int) -> NoReturn:
    """Ends this process, whatever its threads wait for; never returns."""
    say(sentence)
    os._exit(status)


def _note(number: int, frame: FrameType | None) -> None:
    """Python writes to the thread's pipe only signals that have a handler."""


def end_with_parent() -> None:
    """Ends a worker process as soon as its parent is gone, which a killed parent cannot ask for."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
