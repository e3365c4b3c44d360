"""What is measured of training steps: the means of their metrics, and their speed.

The output of a step is read while the next one runs. Sums that are not written yet go into the
checkpoint, so that a resumed run writes the same means.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hyla_lm.logs.console import Console
from hyla_lm.metrics import HostMetrics, add, means, to_host
from hyla_lm.model.flops import model_flops_utilization
from hyla_lm.run.program import Program
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import (
    LEARNING_RATE,
    OPTIM,
    STEP_SECONDS,
    flops_per_token,
    window_tags,
)
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import StepOutput
from hyla_lm.update_policy import check_update

GRADIENT_NORM = "gradient_norm"
SKIPPED = f"{OPTIM}/skipped_updates"
GB = 1e9
OWN_PAGES = Path("/proc/self/statm")


class RunClock:
    """Seconds of training steps and of what is done between them, by the clock `now`.

    Steps are left out of the speed while `is_timed` is False.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._noted: dict[str, float] = {}
        self._last, self.is_timed, self._is_warm = now(), True, False
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0

    def restart(self) -> None:
        """Leaves what happened since the last step, such as an evaluation, out of the speed."""
        self._last = self._now()

    def step_ended(self) -> None:
        """Times a step; the first one of a process is left out of the speed."""
        now = self._now()
        seconds, self._last = now - self._last, now
        if not self.is_timed:
            return
        if self._is_warm:
            self._steps, self._seconds = self._steps + 1, self._seconds + seconds
        else:
            self._is_warm, self._waited = True, 0.0

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Counts the block as time in which training waits for the next batch."""
        began = self._now()
        yield
        self._waited += self._now() - began if self.is_timed else 0

    def speed(self) -> tuple[float, float] | None:
        """Seconds per step and the share of waiting for data since the last call, where timed."""
        steps, seconds, waited = self._steps, max(self._seconds, 1e-9), self._waited
        self._steps, self._seconds, self._waited = 0, 0.0, 0.0
        return (seconds / steps, waited / seconds) if steps else None

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        """Notes the seconds of the block, for the next line."""
        began = self._now()
        yield
        self._noted[f"perf/{name}"] = self._now() - began

    def noted(self) -> dict[str, float]:
        """The seconds noted since the last call, by tag."""
        noted, self._noted = self._noted, {}
        return noted


class StepLog:
    """Reads the output of each step one step late; writes means every LogConfig.every steps.

    `window` holds the sums that are not written yet.
    """

    def __init__(
        self,
        program: Program[Task],
        store: RunStore,
        console: Console,
        clock: RunClock,
        window: Mapping[str, Any],
    ):
        self._program, self._store, self._console, self._clock = program, store, console, clock
        self._every, self._last = program.experiment.log.every, program.experiment.train.steps
        self._pending: tuple[int, StepOutput, np.ndarray] | None = None
        self.window: HostMetrics = {name: (pair[0], pair[1]) for name, pair in window.items()}
        self._first: tuple[int, float] | None = None  # a step, and when it had ended

    def record(self, step: int, output: StepOutput, rows: np.ndarray) -> None:
        """A step was dispatched: reads the one before it."""
        self.flush()
        self._pending = (step, output, rows)

    def flush(self) -> None:
        """Waits for the dispatched step, checks it and writes the window if it is full."""
        if self._pending is None:
            return
        step, output, rows = self._pending
        self._pending = None
        if skipped := check_update(self._program.experiment.updates, step, output, rows):
            self._console.print(skipped)
        norms = output.norms.metrics() if output.norms is not None else {}
        self.window = add(self.window, norms | to_host(output.metrics))
        self._clock.step_ended()
        self._first = self._first or (step, time.monotonic())
        if step % self._every == 0 or step == self._last:
            self._write_window(step, None if output.verdict is None else output.verdict.skipped)

    def _write_window(self, step: int, skipped: jax.Array | None) -> None:
        """Writes the means of the updates made; `skipped` counts all others since step 0."""
        task = self._program.task
        sums, self.window = self.window, {}
        values = task.logged_metrics(means(sums)) if sums[GRADIENT_NORM][1] else {}
        line = window_tags(values)
        skips = 0 if skipped is None else int(skipped)
        line[LEARNING_RATE] = float(self._program.schedule(max(step - 1 - skips, 0)))
        if skipped is not None:
            line[SKIPPED] = skips
        speed = self._speed()
        self._store.write(step, line | speed | self._clock.noted() | memory())
        described = task.describe(values) if values else "no update made"
        self._console.show_step(
            step, described, speed.get("perf/tokens_per_second"), self._time_left(step)
        )

    def _speed(self) -> dict[str, float]:
        """The speed of the steps since the last call; empty where none was timed."""
        measured = self._clock.speed()
        if measured is None:
            return {}
        seconds, data_wait_share = measured
        tokens_per_second = self._program.tokens_per_step / seconds
        speed = {
            "perf/tokens_per_second": tokens_per_second,
            "perf/tokens_per_second_per_chip": tokens_per_second / self._program.mesh.size,
            STEP_SECONDS: seconds,
            "perf/data_wait_share": data_wait_share,
        }
        flops = flops_per_token(self._program)
        utilization = model_flops_utilization(tokens_per_second, flops)
        return speed if utilization is None else {**speed, "perf/mfu": utilization}

    def _time_left(self, step: int) -> str:
        """By the mean time per step of this process, what was done between steps included."""
        assert self._first is not None
        first, ended = self._first
        if step == first:
            return ""
        seconds = (time.monotonic() - ended) / (step - first) * (self._last - step)
        return f"{timedelta(seconds=round(seconds))} left"


def memory() -> dict[str, float]:
    """GB in use on the fullest device, where devices tell, and by this process on Linux."""
    of_devices = [device.memory_stats() or {} for device in jax.local_devices()]
    names = {"bytes_in_use": "device_memory_gb", "peak_bytes_in_use": "device_memory_peak_gb"}
    used = {
        f"perf/{tag}": max(stats[name] for stats in of_devices) / GB
        for name, tag in names.items()
        if all(name in stats for stats in of_devices)
    }
    if OWN_PAGES.exists():
        pages = int(OWN_PAGES.read_text().split()[1])
        used["perf/host_memory_gb"] = pages * os.sysconf("SC_PAGE_SIZE") / GB
    return used
