"""Traces of training steps: those of TrainConfig.profile, and those that a file asks for.

A person asks a run that trains with a file `profile` in its folder. The run looks for it after the
steps that are logged, never between them. Process 0 traces itself.
"""

import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.logs.console import Console
from hyla_lm.logs.step_log import RunClock, StepLog
from hyla_lm.parallel import processes
from hyla_lm.run.folder import PROFILE, RunFolder
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.storage import write_whole

DEFAULT_STEPS = 5
COUNT = re.compile(r"[1-9][0-9]{0,5}")


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
        # Of a trace under way: where it is written, and its first, newest and last step.
        self._local: tempfile.TemporaryDirectory[str] | None = None
        self._begun = self._reached = self._last = 0

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Runs a step in a trace, which begins before it or ends after it where that is due."""
        if processes.is_process_0() and self._local is None and (count := self._due(step - 1)):
            self._begin(step, count)
        if self._local is None:
            yield
            return
        self._reached = step
        with jax.profiler.StepTraceAnnotation("train", step_num=step):
            yield
        if step == self._last:
            self._log.flush()
            self.close()
            self._clock.is_timed = True
            self._clock.restart()

    def close(self) -> None:
        """Ends a trace under way, and writes it."""
        if self._local is None:
            return
        self._watchdog.waits_for(f"step {self._reached} waits for its trace to be written")
        with self._local as local:
            self._local = None
            jax.profiler.stop_trace()
            (trace,) = Path(local).rglob("*.xplane.pb")
            content = trace.read_bytes()
        name = f"{time.strftime('%Y_%m_%d_%H_%M_%S')}_step_{self._begun}"
        folder = self._folder.traces / name
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{socket.gethostname()}.xplane.pb", content)
        self._console.print(f"trace of steps {self._begun} to {self._reached}: {folder}")

    def _due(self, step: int) -> int:
        """The number of steps to trace after this one."""
        left = self._first + self._count - 1 - step
        if 0 < left <= self._count:
            return left
        return self._asked_for() if step % self._every == 0 else 0

    def _asked_for(self) -> int:
        """The number of steps that a file asks for, which is removed."""
        content = self._folder.take(PROFILE)
        if content is None:
            return 0
        text = content.decode(errors="replace").strip()
        if text and not COUNT.fullmatch(text):
            self._console.print(
                f"{self._folder.path / PROFILE} held {text[:40]!r}, which is no number of steps, "
                "so no trace is taken: write a number such as 5, or leave the file empty"
            )
            return 0
        return int(text or DEFAULT_STEPS)

    def _begin(self, step: int, count: int) -> None:
        self._log.flush()
        self._clock.is_timed = False
        self._begun, self._last = step, min(step + count - 1, self._steps)
        self._local = tempfile.TemporaryDirectory(prefix="hyla_lm-")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of Python would be an event
        jax.profiler.start_trace(self._local.name, profiler_options=options)
