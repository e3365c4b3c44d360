"""What is written about training steps: window means and speed.

A step is looked at while the next one runs. The window of metrics not yet written goes into the
checkpoint, so a resumed run writes the same means.
"""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from hyla_lm.logs.alarm import Alarm
from hyla_lm.logs.console import TrainingProgress
from hyla_lm.logs.costs import Costs
from hyla_lm.logs.pace import Pace
from hyla_lm.logs.throughput import model_flops_utilization
from hyla_lm.metrics import HostMetrics, add, means, to_host
from hyla_lm.run.program import Program
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import LEARNING_RATE, OPTIM, STEP_SECONDS, flops_per_token, window_tags
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import StepOutput

GRADIENT_NORM = "gradient_norm"
SKIPPED = f"{OPTIM}/skipped_updates"


class StepLog:
    """Looks at each step's output one step late; writes window means every LogConfig.every steps.

    `window` holds the sums not yet written. Steps are left out of the speed while `is_timed` is
    False.
    """

    def __init__(
        self,
        program: Program[Task],
        store: RunStore,
        progress: TrainingProgress,
        pace: Pace,
        costs: Costs,
        window: Mapping[str, Any],
    ):
        self._program, self._store, self._progress = program, store, progress
        self._pace, self._costs = pace, costs
        self._every = program.experiment.log.every
        self._alarm = Alarm(program, store, progress)
        self._pending: tuple[int, StepOutput, np.ndarray] | None = None
        self.window: HostMetrics = {name: (pair[0], pair[1]) for name, pair in window.items()}
        self._has_compiled, self.is_timed = False, True
        self._clock = time.monotonic()
        self._steps_timed, self._window_seconds, self._wait_seconds = 0, 0.0, 0.0

    def record(self, step: int, output: StepOutput, rows: np.ndarray) -> None:
        """A step was dispatched: look at the one before it."""
        self.flush()
        self._pending = (step, output, rows)

    def waited(self, seconds: float) -> None:
        """Time spent waiting for the next batch."""
        self._wait_seconds += seconds if self.is_timed else 0

    def flush(self) -> None:
        """Waits for the dispatched step, checks it and writes the window if it is full."""
        if self._pending is None:
            return
        step, output, rows = self._pending
        self._pending = None
        self._alarm.look(step, output, rows)
        norms = output.norms.metrics() if output.norms is not None else {}
        self.window = add(self.window, norms | to_host(output.metrics))
        self._tick()
        self._progress.advance(step)
        if step % self._every == 0 or step == self._program.experiment.train.steps:
            skipped = None if output.verdict is None else int(output.verdict.skipped)
            self._write_window(step, skipped)

    def restart_clock(self) -> None:
        """Leaves what happened since the last step, such as an evaluation, out of the speed."""
        self._clock = time.monotonic()

    def _tick(self) -> None:
        """Times a step; the first of a process compiles and is left out."""
        now = time.monotonic()
        seconds = now - self._clock
        self._costs.stepped(seconds)
        if not self.is_timed:
            self._clock = now
            return
        if self._has_compiled:
            self._window_seconds += seconds
            self._steps_timed += 1
        else:
            self._wait_seconds = 0.0
        self._has_compiled, self._clock = True, now

    def _write_window(self, step: int, skipped: int | None) -> None:
        """The means of the updates made; `skipped` counts all others since step 0."""
        task = self._program.task
        sums, self.window = self.window, {}
        values = task.logged_metrics(means(sums)) if sums[GRADIENT_NORM][1] else {}
        line = window_tags(values)
        line[LEARNING_RATE] = float(self._program.schedule(max(step - 1 - (skipped or 0), 0)))
        if skipped is not None:
            line[SKIPPED] = skipped
        speed = self._speed()
        self._steps_timed, self._window_seconds, self._wait_seconds = 0, 0.0, 0.0
        self._store.write(step, line | speed | self._costs.take_all())
        told = task.describe(values) if values else "no update made"
        if STEP_SECONDS in speed:
            self._pace.stepped(speed[STEP_SECONDS])
        left = self._pace.left(step)
        self._progress.show(step, told, speed.get("perf/tokens_per_second"), left)

    def _speed(self) -> dict[str, float]:
        """Of the window's timed steps; empty where there is none."""
        if self._steps_timed == 0:
            return {}
        seconds = max(self._window_seconds, 1e-9)
        tokens_per_second = self._program.tokens_per_step * self._steps_timed / seconds
        speed = {
            "perf/tokens_per_second": tokens_per_second,
            "perf/tokens_per_second_per_chip": tokens_per_second / self._program.mesh.size,
            STEP_SECONDS: seconds / self._steps_timed,
            "perf/data_wait_share": self._wait_seconds / seconds,
        }
        flops = flops_per_token(self._program)
        utilization = model_flops_utilization(tokens_per_second, flops)
        return speed if utilization is None else {**speed, "perf/mfu": utilization}
