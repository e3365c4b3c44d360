"""Traces of training steps: those of TrainConfig.profile, and those that a file asks for.

A person asks a run that trains with a file `profile` in its folder. The run looks for it after the
steps that are logged, never between them. Process 0 traces itself.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.logs.console import Console
from hyla_lm.logs.step_log import RunClock, StepLog
from hyla_lm.parallel import processes
from hyla_lm.run.folder import PROFILE, RunFolder
from hyla_lm.run.watchdog import Watchdog

DEFAULT_STEPS = 5


class Profiler:
    """Takes traces of whole steps: run each step in `step`.

    The device has nothing to do when a trace starts and when it ends. Steps in a trace are not
    timed. `close` ends a trace in which the run stopped, and writes the steps that it has.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: RunFolder,
        log: StepLog,
        clock: RunClock,
        console: Console,
        watchdog: Watchdog,
    ):
        self._first, self._count = experiment.train.profile or (0, 0)
        self._every, self._steps = experiment.log.every, experiment.train.steps
        self._folder, self._log, self._clock = folder, log, clock
        self._console, self._watchdog = console, watchdog
        self._last = 0  # the last step of a trace under way; 0 without one

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Runs a step in a trace, which begins before it or ends after it where that is due."""
        if processes.is_process_0() and not self._last and (count := self._due(step - 1)):
            self._begin(step, count)
        if not self._last:
            yield
            return
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == self._last:
            self._log.flush()
            self.close()
            self._clock.is_timed = True
            self._clock.restart()

    def close(self) -> None:
        """Ends a trace under way, and writes it."""
        if self._last:
            self._last = 0
            self._watchdog.waits_for("a trace is written")
            jax.profiler.stop_trace()

    def _due(self, step: int) -> int:
        """The number of steps to trace after this one."""
        left = self._first + self._count - 1 - step
        if 0 < left <= self._count:
            return left
        request = self._folder.take(PROFILE) if step % self._every == 0 else None
        if request is None:
            return 0
        return int(request) if request.strip().isdigit() else DEFAULT_STEPS

    def _begin(self, step: int, count: int) -> None:
        self._log.flush()
        self._clock.is_timed = False
        self._last = min(step + count - 1, self._steps)
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of Python would be an event
        options.session_id = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_step_{step}"
        # JAX writes where TensorBoard looks for traces: in plugins/profile, beside the events.
        jax.profiler.start_trace(self._folder.logs, profiler_options=options)
        self._console.print(f"traces steps {step} to {self._last}")
