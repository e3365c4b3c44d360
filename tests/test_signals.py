"""Requests to stop."""

import os
import signal
import sys
import threading

import pytest

from hyla_lm.signals import signals


class Gone:
    """A stream whose reader has ended."""

    def write(self, _: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_request_is_passed_on_where_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    with signals() as answering:
        answering.guard(60, told.set)
        monkeypatch.setattr(sys, "stderr", Gone())
        os.kill(os.getpid(), signal.SIGTERM)
        assert told.wait(10) and answering.is_interrupted
        answering.unguard()


def test_a_request_at_the_very_end_leaves_no_clock_behind() -> None:
    """One that it left would end whatever this process does a minute later."""
    with signals() as answering:
        answering.guard(60)
        os.kill(os.getpid(), signal.SIGTERM)
    answering.unguard()
    for thread in threading.enumerate():
        if thread.name == "signals":
            thread.join()
    clocks = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(clock.finished.is_set() for clock in clocks)
