"""Trains a population of runs to their last step, each in its folder, resumably.

The trainer trains them as one run. Every run stays an ordinary one: its folder has the
configuration, metrics, checkpoints and summary that `hyla-lm train` writes, and that command
resumes from its checkpoints.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.ending import Preempted
from hyla_lm.evals.populations.population import Population, of_run
from hyla_lm.input.stream import ROW_NUMBERS
from hyla_lm.logs.console import Console
from hyla_lm.logs.step_log import RunClock, StepLog
from hyla_lm.metrics import means, to_host
from hyla_lm.parallel.mesh import all_devices
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.due_actions import VALIDATION, at_checkpoint, at_evaluation
from hyla_lm.run.folder import RunFolder, read_summary
from hyla_lm.run.profiling import Profiler
from hyla_lm.run.program import Program, check_memory, make_program
from hyla_lm.run.run import Run
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import summary_of
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.signals import signals
from hyla_lm.tasks.protocol import HostBatch, Task
from hyla_lm.train import train_steps
from hyla_lm.train_step import StepOutput, TrainState
from hyla_lm.update_policy import BadUpdate


@dataclass(frozen=True)
class Member:
    """One run: its program and the path of its folder."""

    program: Program[Task]
    workdir: str


def open_member(gin_files: Sequence[str], bindings: Sequence[str], workdir: str) -> Member:
    """A run as `hyla-lm train` would read it, on one device."""
    experiment = read_experiment(gin_files, bindings)
    return Member(make_program(experiment, all_devices()[:1]), workdir)


def train_many(members: Sequence[Member], until: int | None = None) -> list[dict[str, Any]]:
    """Trains all runs to their last step, resuming from what is saved; returns their summaries.

    `until` is an earlier step to save and stop at; no summary is written then. A run whose update
    is not finite is reported and left out from then on, and its summary has the step. Raises
    Preempted when the runs are interrupted, after saving.
    """
    run = PopulationRun(members, until)
    with run:
        train_steps(run)
        return run.summaries()


class PopulationRun(Run):
    """Many runs that the trainer trains as one; each writes what it would write by itself."""

    def __init__(self, members: Sequence[Member], until: int | None = None):
        self.population = Population([member.program for member in members])
        program = self.population.program
        check_memory(program, len(members))
        self.program = replace(program, train_step=self.population.train_step)
        self.experiment = e = program.experiment
        self.last = e.train.steps if until is None else until
        with ExitStack() as stack:
            stack.enter_context(jax.set_mesh(program.mesh))
            self.guard = stack.enter_context(PreemptionGuard(e.checkpoint.stop_seconds))
            folders = [stack.enter_context(closing(RunFolder(m.workdir))) for m in members]
            pairs = zip(members, folders, strict=True)
            self.runs = [_MemberRun(member.program, folder, stack) for member, folder in pairs]
            self.folder = folders[0]
            self.watchdog = Watchdog(e.train.hang_seconds)
            stack.enter_context(closing(self.watchdog))
            saved = [set(run.store.checkpoints.steps()) for run in self.runs]
            self.first = max(set.intersection(*saved), default=0)
            self.state = self._first_state()
            stack.push(signals().end_on_error_within(e.checkpoint.stop_seconds))
            self.guard.begin()
            self.batches = _RowNumbers(self)
            self.console = Console(e.train.steps)
            silent = Console(e.train.steps, prints=False)
            redone = (f"{VALIDATION}/",) if self._is_evaluated(self.first) else ()
            for run in self.runs:
                console = self.console if run is self.runs[0] else silent
                run.begin(self.first, redone, console)
            self.clock, self.log = self.runs[0].clock, _PopulationLog(self.runs)
            profiler = Profiler(e, self.folder, self.log, self.clock, self.console, self.watchdog)
            self.profiler = stack.enter_context(closing(profiler))
            self._stack = stack.pop_all()

    def next_step(self, step: int) -> int:
        """The next step that is logged, saved or evaluated, or the last one."""
        e = self.experiment
        every = (e.log.every, e.checkpoint.every, e.train.eval_every)
        return min(self.last, *((step // n + 1) * n for n in every if n))

    def run_due_actions(self, step: int) -> None:
        """Saves and evaluates where that is due, as hyla_lm.run.due_actions decides."""
        for run in self.runs:
            run.store.check()
        if step == self.last or at_checkpoint(self.experiment, step):
            self._save(step)
        if self._is_evaluated(step):
            self._evaluate(step)
        if step < self.last and self.guard.requested():
            self._save(step)
            raise Preempted(f"stopped after step {step}, which is saved")

    def summaries(self) -> list[dict[str, Any]]:
        """The summary of each run, written where the runs are at their end."""
        return [
            run.finish(self.last, of_run(self.state.params, index))
            for index, run in enumerate(self.runs)
        ]

    def _first_state(self) -> TrainState:
        if self.first == 0:
            return self.population.init()
        states = [run.restore(self.first) for run in self.runs]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def _is_evaluated(self, step: int) -> bool:
        return step == self.last or at_evaluation(self.experiment, step)

    def _save(self, step: int) -> None:
        if all(run.store.is_saved(step) for run in self.runs):
            return
        self.waits_for(step, "a save")
        self.log.flush()
        states = jax.device_get(self.state)
        for index, run in enumerate(self.runs):
            run.save(step, of_run(states, index), self.batches.get_state())
            run.clock.restart()

    def _evaluate(self, step: int) -> None:
        self.log.flush()
        task, population = self.population.task, self.population
        values: list[dict[str, float]] = [{} for _ in self.runs]
        with self.watchdog.paused():
            for name in task.evaluation_names():
                examples = task.evaluation_count(step == self.last)
                sums = jax.device_get(
                    population.functions.evaluate(
                        self.state.params, population.numbers, name, examples
                    )
                )
                for index, of_sets in enumerate(values):
                    logged = task.logged_metrics(means(to_host(of_run(sums, index))))
                    of_sets |= {f"{name}_{key}": value for key, value in logged.items()}
        for run, of_sets in zip(self.runs, values, strict=True):
            if run.diverged_at is None:
                run.write_validation(step, of_sets)
                self.console.print(f"step {step}  {run.name}  {task.describe(of_sets)}")
            run.clock.restart()


class _RowNumbers:
    """The numbers, KxB, of the rows of each dispatch, whose examples the train step draws."""

    def __init__(self, run: PopulationRun):
        self._run, self._step = run, run.first
        self._batch_size = run.experiment.train.batch_size

    def __next__(self) -> HostBatch:
        first, self._step = self._step, self._run.next_step(self._step)
        rows = np.arange(first * self._batch_size, self._step * self._batch_size) % ROW_NUMBERS
        return {"row": rows.astype(np.int32).reshape(-1, self._batch_size)}

    def get_state(self) -> dict[str, Any]:
        return {"rows_drawn": self._step * self._batch_size}

    def close(self) -> None:
        """Nothing runs ahead."""


class _DispatchClock(RunClock):
    """The clock of steps that end together: those of one dispatch. The first one compiles."""

    def step_ended(self) -> None:
        """See dispatch_ended."""

    def dispatch_ended(self, steps: int) -> None:
        now = self._now()
        seconds, self._last = now - self._last, now
        if self.is_timed and self._is_warm:
            self._steps, self._seconds = self._steps + steps, self._seconds + seconds
        self._is_warm = True


class _PopulationLog(StepLog):
    """Reads the outputs of all runs one dispatch late, for the log of each."""

    def __init__(self, runs: "Sequence[_MemberRun]"):
        self._runs = runs
        self._pending: tuple[int, StepOutput, np.ndarray] | None = None

    def flush(self) -> None:
        if self._pending is None:
            return
        (last, output, row_KxB), self._pending = self._pending, None
        output = jax.device_get(output)
        for index, run in enumerate(self._runs):
            run.record(last, of_run(output, index), row_KxB)


class _MemberRun:
    """One run's folder, clock and log; `diverged_at` is the step whose update was not finite."""

    def __init__(self, program: Program[Task], folder: RunFolder, stack: ExitStack):
        self.program, self.folder = program, folder
        self.store = stack.enter_context(closing(RunStore(program, folder)))
        self.name = "/".join(folder.path.parts[-2:])
        self.validation: dict[str, float] = {}
        self._data: dict[str, Any] = {}

    def restore(self, step: int) -> TrainState:
        state, self._data = self.store.restore(step)
        return state

    def begin(self, first: int, redone: Sequence[str], console: Console) -> None:
        """Begins to write from a step on; lines after it go, and its own of tags redone."""
        self.store.begin(first, redone)
        before = read_summary(self.folder.path)
        self.diverged_at = before.get("diverged_at") if before.get("step") == first else None
        self.clock = _DispatchClock()
        window = self._data.get("window", {})
        self.log = StepLog(self.program, self.store, console, self.clock, window)

    def record(self, last: int, output_K: StepOutput, row_KxB: np.ndarray) -> None:
        """Logs the updates up to a step, but none after one that was not finite."""
        self.clock.dispatch_ended(len(row_KxB))
        first = last - len(row_KxB) + 1
        for index, row_B in enumerate(row_KxB):
            if self.diverged_at is not None:
                return
            self.log.record(first + index, of_run(output_K, index), row_B)
            try:
                self.log.flush()
            except BadUpdate as error:
                self.diverged_at, self.validation = first + index, {}
                print(f"{self.folder.path} is left out from now on: {error}", flush=True)

    def write_validation(self, step: int, values: dict[str, float]) -> None:
        self.validation = values
        self.store.write(step, {f"{VALIDATION}/{name}": value for name, value in values.items()})

    def save(self, step: int, state: TrainState, stream: dict[str, Any]) -> None:
        """Saves what `hyla-lm train` would have saved."""
        data = {"streams": [stream], "window": self.log.window}
        self.store.save(step, jax.tree.map(jnp.asarray, state), data)

    def finish(self, step: int, params: Any) -> dict[str, Any]:
        """The summary at a step, written if it is the last one."""
        trained = summary_of(self.program, params, self.folder.lines())
        trained["diverged_at"] = self.diverged_at
        evaluated = {VALIDATION: self.validation}
        is_finished = step == trained["step"]
        return self.store.finish(trained, evaluated) if is_finished else {**trained, **evaluated}
