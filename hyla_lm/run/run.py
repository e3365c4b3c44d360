"""A process's part of a run while it trains."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.diagnostics.attention import Look, make_look
from hyla_lm.input.source import Batches
from hyla_lm.logs.console import TrainingProgress
from hyla_lm.logs.costs import Costs
from hyla_lm.logs.pace import Pace
from hyla_lm.logs.step_log import StepLog
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.profiling import Profiler
from hyla_lm.run.program import Program
from hyla_lm.run.store import RunStore
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.tasks.protocol import Batch, Task


@dataclass
class Run:
    """What is open while a run trains, from step `first` on; duties leave what they found.

    `validation` and `suites` are the metrics of their last evaluation, `summary` that of the run.
    """

    program: Program[Task]
    store: RunStore
    shard: BatchShard
    batches: Batches
    log: StepLog
    progress: TrainingProgress
    pace: Pace
    costs: Costs
    guard: PreemptionGuard
    watchdog: Watchdog
    profiler: Profiler
    first: int
    started_seconds: float = field(default_factory=time.monotonic)
    validation: dict[str, float] = field(default_factory=dict)
    suites: dict[str, dict[str, float]] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def look(self) -> Callable[[Any, Batch], Look]:
        """The look inside attention, compiled when it is first asked for."""
        program = self.program
        return make_look(program.task, program.model, program.mesh)

    @property
    def experiment(self) -> Experiment:
        return self.program.experiment
