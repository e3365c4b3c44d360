"""Stops a run in good order on SIGTERM, which clouds send before they take a machine away."""

import signal
from types import FrameType

import jax
from jax.experimental import multihost_utils

EXIT_STATUS = 75  # EX_TEMPFAIL: the same command goes on from the checkpoint


class Preempted(Exception):
    """A run was asked to stop and has saved everything up to a step."""


class PreemptionGuard:
    """Tells whether the run was asked to stop; all its processes learn it at the same call.

    Each process calls `requested` after every step and every evaluation batch, so that all count
    the same calls.
    """

    def __init__(self) -> None:
        self._requested = False
        self._calls = 0

    def __enter__(self) -> "PreemptionGuard":
        if jax.process_count() == 1:
            self._before = signal.signal(signal.SIGTERM, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._requested = True

    def requested(self) -> bool:
        """Whether to stop now; once true it stays true."""
        self._calls += 1
        if jax.process_count() > 1 and not self._requested:
            self._requested = multihost_utils.reached_preemption_sync_point(self._calls)
        return self._requested
