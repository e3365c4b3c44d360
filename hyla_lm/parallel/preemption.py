"""Stops a run that is interrupted in good order: all its processes after the same step."""

import os
import signal

import jax
from jax.experimental import multihost_utils

from hyla_lm.signals import signals


class PreemptionGuard:
    """Tells whether the run was interrupted; all its processes learn it at the same call.

    Each process calls `requested` after every step and every evaluation batch, so that all count
    the same calls. The run then has so many seconds to save and end. Before `begin` nothing is to
    be saved, and a signal ends the process at once.
    """

    def __init__(self, seconds: float = 30) -> None:
        self._seconds, self._signals = seconds, signals()
        self._requested = self._has_begun = False
        self._calls = 0

    def __enter__(self) -> "PreemptionGuard":
        self._signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_begun:
            self._signals.unguard()
        self._signals.__exit__()

    def begin(self) -> None:
        """From now on signals are answered by what calls `requested`."""
        self._has_begun = True
        shared = jax.process_count() > 1
        self._signals.guard(self._seconds, _tell_jax if shared else None)

    def requested(self) -> bool:
        """Whether to stop now; once true it stays true."""
        self._calls += 1
        if self._requested:
            return True
        if jax.process_count() == 1:
            self._requested = self._signals.is_interrupted
        elif multihost_utils.reached_preemption_sync_point(self._calls):
            self._requested = True
            self._signals.end_within(self._seconds)
        return self._requested


def _tell_jax() -> None:
    """JAX, which took SIGTERM over, tells the other processes."""
    os.kill(os.getpid(), signal.SIGTERM)
