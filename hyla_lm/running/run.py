"""A process's part of a run while it trains."""

import time
from dataclasses import dataclass, field
from typing import Any

from hyla_lm.experiment import Experiment
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.running.console import TrainingProgress
from hyla_lm.running.pace import Pace
from hyla_lm.running.profiling import Profiler
from hyla_lm.running.program import Program
from hyla_lm.running.run_store import RunStore
from hyla_lm.running.step_log import StepLog
from hyla_lm.running.watchdog import Watchdog
from hyla_lm.tasks.protocol import BatchStream, Task


@dataclass
class Run:
    """What is open while a run trains, from step `first` on; duties leave what they found.

    `validation` and `suites` are the metrics of their last evaluation, `summary` that of the run.
    """

    program: Program[Task]
    store: RunStore
    shard: BatchShard
    batches: BatchStream
    log: StepLog
    progress: TrainingProgress
    pace: Pace
    guard: PreemptionGuard
    watchdog: Watchdog
    profiler: Profiler
    first: int
    started_seconds: float = field(default_factory=time.monotonic)
    validation: dict[str, float] = field(default_factory=dict)
    suites: dict[str, dict[str, float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def experiment(self) -> Experiment:
        return self.program.experiment
