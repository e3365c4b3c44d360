"""Traces of training steps: those that TrainConfig.profile names, and those that are asked for.

A person asks a run that trains by a file `profile` in its folder, or by SIGUSR1. Both are looked
for after the steps that are logged, never between them.
"""

import logging
import re
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.logs.console import TrainingProgress
from hyla_lm.logs.step_log import StepLog
from hyla_lm.parallel import multihost
from hyla_lm.run.folder import PROFILE, RunFolder
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.storage import write_whole

STEPS_ASKED = 5
COUNT = re.compile(r"[1-9][0-9]{0,5}")

log = logging.getLogger(__name__)


class Profiler:
    """Takes traces of whole steps: call `begin` before each step and `end` after it.

    The device has nothing to do when a trace starts and when it ends. Steps in a trace are not
    timed. `close` ends a trace in which the run stopped, and keeps the steps that it has.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        steps: StepLog,
        progress: TrainingProgress,
        watchdog: Watchdog,
    ):
        train = experiment.train
        self._asks_all = train.profile_processes == "all"
        self._traces = multihost.is_lead() or self._asks_all
        self._first, self._count = train.profile or (0, 0)
        self._every, self._steps = experiment.log.every, train.steps
        self._folder, self._log = folder, steps
        self._progress, self._watchdog = progress, watchdog
        self._trace: _Trace | None = None
        self._is_signalled = False
        self._before = signal.signal(signal.SIGUSR1, self._note)

    def begin(self, step: int) -> None:
        """Starts a trace of the steps after this one, if it is due."""
        count = self._due(step) if self._traces and self._trace is None else 0
        if count:
            self._log.flush()
            self._log.is_timed = False
            name = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_step_{step + 1}"
            name = multihost.gather(name)[0] if self._asks_all else name
            self._trace = _Trace(name, step + 1, min(step + count, self._steps))

    def step(self, step: int) -> AbstractContextManager[object]:
        """The length of a step, by its number, in a trace."""
        if self._trace is None:
            return nullcontext()
        self._trace.reached = step
        return jax.profiler.StepTraceAnnotation("train", step_num=step)

    def end(self, step: int) -> None:
        """Ends the trace whose last step this is."""
        if self._trace is None or step < self._trace.last:
            return
        self._log.flush()
        self._write(self._trace)
        self._log.is_timed = True
        self._log.restart_clock()

    def close(self) -> None:
        """Ends a trace under way, and answers SIGUSR1 no more."""
        signal.signal(signal.SIGUSR1, self._before)
        if self._trace is not None:
            self._write(self._trace)

    def _due(self, step: int) -> int:
        """The number of steps to trace after this one."""
        left = self._first + self._count - 1 - step
        if 0 < left <= self._count:
            return left
        return self._asked() if step % self._every == 0 else 0

    def _asked(self) -> int:
        """The number of steps that a person asks for; with all processes, by a request to any."""
        found = self._take_request()
        return max(multihost.gather(found)) if self._asks_all else found

    def _take_request(self) -> int:
        is_signalled, self._is_signalled = self._is_signalled, False
        content = self._folder.take(PROFILE) if multihost.is_lead() else None
        if content is None:
            return STEPS_ASKED if is_signalled else 0
        text = content.decode(errors="replace").strip()
        if text and not COUNT.fullmatch(text):
            self._progress.say(
                f"{self._folder.path / PROFILE} held {text[:40]!r}, which is no number of steps, "
                "so no trace is taken: write a number such as 5, or leave the file empty"
            )
            return 0
        return int(text or STEPS_ASKED)

    def _write(self, trace: "_Trace") -> None:
        self._trace = None
        self._watchdog.waits_for(f"step {trace.reached} waits for its trace to be written")
        place = self._folder.traces / trace.name
        file = f"{socket.gethostname()}_{jax.process_index()}.xplane.pb"
        with trace.stopped() as content:
            place.mkdir(parents=True, exist_ok=True)
            write_whole(place / file, content)
        self._progress.say(f"trace of steps {trace.first} to {trace.reached}: {place}")

    def _note(self, *_: object) -> None:
        self._is_signalled = True
        if not self._traces:
            log.warning(
                "process %d takes no traces (TrainConfig.profile_processes = 'first'): "
                "signal the first process",
                jax.process_index(),
            )


class _Trace:
    """A trace under way, from step `first` to `last`; `reached` is the newest step in it."""

    def __init__(self, name: str, first: int, last: int):
        self.name, self.first, self.last = name, first, last
        self.reached = first
        self._local = tempfile.TemporaryDirectory(prefix="hyla_lm-")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of Python would be an event
        jax.profiler.start_trace(self._local.name, profiler_options=options)

    @contextmanager
    def stopped(self) -> Iterator[bytes]:
        """Ends it; gives the trace's content."""
        with self._local as folder:
            jax.profiler.stop_trace()
            (file,) = Path(folder).rglob("*.xplane.pb")
            yield file.read_bytes()
