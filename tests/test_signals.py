"""Requests to stop."""

import os
import signal
import threading

from hyla_lm.signals import signals


def test_what_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with signals() as answering:
        answering.guard(60)
        os.kill(os.getpid(), signal.SIGHUP)
    answering.unguard()
    signal.signal(signal.SIGHUP, before)
    assert not answering.is_interrupted


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
