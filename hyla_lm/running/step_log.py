"""What is written about training steps: window means, gradient norms, speed, and the alarm.

A step is looked at while the next one runs. The window of metrics not yet written goes into the
checkpoint, so a resumed run writes the same means.
"""

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from hyla_lm.config import UserError
from hyla_lm.metrics import HostMetrics, add, means, to_host
from hyla_lm.running.console import TrainingProgress
from hyla_lm.running.program import Program
from hyla_lm.running.run_folder import RunFolder
from hyla_lm.running.tensorboard import TensorBoard
from hyla_lm.running.throughput import model_flops_utilization, train_flops_per_token
from hyla_lm.tasks.protocol import OBJECTIVE
from hyla_lm.train_step import StepOutput

LARGEST_NAMED = 5


class NonFinite(UserError):
    """Loss or gradients stopped being finite; the last checkpoint is from before."""


class StepLog:
    """Collects step outputs one step late and writes window means every LogConfig.every steps."""

    def __init__(
        self,
        program: Program,
        folder: RunFolder,
        board: TensorBoard,
        window: Mapping[str, Any],
    ):
        self._program, self._folder, self._board = program, folder, board
        self._every = program.experiment.log.every
        self._pending: tuple[int, StepOutput, np.ndarray] | None = None
        self.window: HostMetrics = {name: (pair[0], pair[1]) for name, pair in window.items()}
        self.last_means: dict[str, float] = {}
        self.tokens_seen = 0.0
        self.train_seconds = 0.0
        self._steps_timed = 0
        self._total_steps_timed = 0
        self._window_seconds = 0.0
        self._wait_seconds = 0.0
        self._clock = time.monotonic()

    def started(
        self, step: int, output: StepOutput, rows: np.ndarray, progress: TrainingProgress
    ) -> None:
        """A step was dispatched: look at the one before it."""
        self.finish(progress)
        self._pending = (step, output, rows)

    def waited(self, seconds: float) -> None:
        """Time spent waiting for the next batch."""
        self._wait_seconds += seconds

    def finish(self, progress: TrainingProgress) -> None:
        """Waits for the dispatched step, checks it and writes the window if it is full."""
        if self._pending is None:
            return
        step, output, rows = self._pending
        self._pending = None
        metrics = to_host(output.metrics)
        self._check_finite(step, metrics, output, rows)
        self._tick()
        self.window = add(self.window, metrics)
        progress.advance(step)
        if step % self._every == 0 or step == self._program.experiment.train.steps:
            self._write_window(step, progress)

    def restart_clock(self) -> None:
        """Leaves what happened since the last step out of the speed."""
        self._clock = time.monotonic()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._folder.append_metrics(step, values)
        self._board.scalars(step, values)

    def tokens_per_second(self) -> float:
        """Over all steps of this process but the first, which compiles."""
        tokens = self._tokens_per_step() * max(self._total_steps_timed, 0)
        return tokens / self.train_seconds if self.train_seconds else 0.0

    def _tick(self) -> None:
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        if self._total_steps_timed or self._steps_timed:
            self.train_seconds += seconds
            self._total_steps_timed += 1
        self._steps_timed += 1
        self._window_seconds += seconds

    def _tokens_per_step(self) -> int:
        return self._program.task.tokens_per_batch(self._program.experiment.train.batch_size)

    def _write_window(self, step: int, progress: TrainingProgress) -> None:
        sums, self.window = self.window, {}
        sums.pop(OBJECTIVE, None)
        values = self._program.task.figures(means(sums))
        self.last_means = values
        rate = float(self._program.schedule(step - 1))
        speed = self._tokens_per_step() * self._steps_timed / max(self._window_seconds, 1e-9)
        line = {f"train/{name}": value for name, value in values.items()}
        line |= {"train/learning_rate": rate, "perf/tokens_per_second": speed}
        line["perf/step_seconds"] = self._window_seconds / max(self._steps_timed, 1)
        line["perf/data_wait_share"] = self._wait_seconds / max(self._window_seconds, 1e-9)
        utilization = model_flops_utilization(speed, self.flops_per_token())
        if utilization is not None:
            line["perf/mfu"] = utilization
        self._steps_timed, self._window_seconds, self._wait_seconds = 0, 0.0, 0.0
        self.write(step, line)
        progress.show(step, self._program.task.describe(values), speed)

    def flops_per_token(self) -> float:
        program = self._program
        return train_flops_per_token(
            program.experiment.model, program.task.io, program.task.sequence_length
        )

    def _check_finite(
        self, step: int, metrics: HostMetrics, output: StepOutput, rows: np.ndarray
    ) -> None:
        watched = (metrics[OBJECTIVE][0], metrics["gradient_norm"][0])
        if all(math.isfinite(value) for value in watched):
            return
        norms = {name: float(norm) for name, norm in output.gradient_norms.items()}
        worst = sorted(norms, key=lambda name: (math.isfinite(norms[name]), -norms[name]))
        named = ", ".join(f"{name} {norms[name]:.3g}" for name in worst[:LARGEST_NAMED])
        raise NonFinite(
            f"step {step}: loss {watched[0]:.4g}, gradient norm {watched[1]:.4g} on rows "
            f"{sorted(rows.tolist())}; largest gradients: {named}. The last checkpoint is kept: "
            "lower OptimizerConfig.learning_rate, set OptimizerConfig.clip_norm or see these rows."
        )
