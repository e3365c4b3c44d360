"""Trains a population of runs to their last step, each in a folder of its own, resumably."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.checkpoint.checkpoint import Damaged
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.evals.populations.population import Population, of_run
from hyla_lm.evals.tasks.generated import GeneratedTask
from hyla_lm.logs.console import Console, time_left
from hyla_lm.metrics import HostMetrics, means, to_host
from hyla_lm.parallel.devices import devices
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.due_actions import DUE_ACTIONS, VALIDATION, at_checkpoint, at_evaluation
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.program import Program, make_program
from hyla_lm.run.run import redone_tags
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import LEARNING_RATE, STEP_SECONDS, summary_of, window_tags
from hyla_lm.signals import end_on_error_within
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import Sums, TrainState


@dataclass(frozen=True)
class Member:
    """One run: its program and the path of its folder."""

    program: Program[Task]
    workdir: str


def open_member(gin_files: Sequence[str], bindings: Sequence[str], workdir: str) -> Member:
    """A run as `hyla-lm train` would read it, on one device."""
    experiment = read_experiment(gin_files, bindings)
    return Member(make_program(experiment, devices()[:1]), workdir)


def compiled(members: Sequence[Member]) -> Population:
    """The runs as one population, compiled: in another thread, while others train."""
    population = Population([member.program for member in members])
    e, task = population.program.experiment, population.task
    check_schedule(e)
    lengths = {end - begin for begin, end in windows(0, e.train.steps, e.log.every)}
    examples = {task.evaluation_count(final) for final in (False, True)}
    with jax.set_mesh(population.program.mesh):
        population.compile(lengths, examples)
    return population


def train_many(
    members: Sequence[Member], until: int | None = None, population: Population | None = None
) -> list[dict[str, Any]]:
    """Trains all runs to their last step, going on from what is saved; returns their summaries.

    `until` is an earlier step to save and stop at, a multiple of LogConfig.every; no summary is
    written then. `population` is what `compiled` made of the runs, where it did. A run whose loss
    stops being finite is told, and its summary has the step. Raises Preempted when it is asked to
    stop, after saving.
    """
    if population is None:
        population = Population([member.program for member in members])
    e = population.program.experiment
    check_schedule(e)
    last = e.train.steps if until is None else until
    with ExitStack() as stack:
        stack.enter_context(jax.set_mesh(population.program.mesh))
        guard = stack.enter_context(PreemptionGuard(e.checkpoint.stop_seconds))
        folders = [stack.enter_context(closing(RunFolder(member.workdir))) for member in members]
        stores = [
            stack.enter_context(closing(RunStore(member.program, folder, step_setting=None)))
            for member, folder in zip(members, folders, strict=True)
        ]
        first = _common_step(stores)
        stack.push(end_on_error_within(e.checkpoint.stop_seconds))
        guard.begin()
        runs = [_Run(m, store, first, last) for m, store in zip(members, stores, strict=True)]
        progress = stack.enter_context(closing(Console(e.train.steps, first)))
        return _Training(population, runs, guard, progress, last).train(first)


class _Run:
    """What one member writes, from a step on."""

    def __init__(self, member: Member, store: RunStore, first: int, last: int):
        self.program, self.store = member.program, store
        e = member.program.experiment
        redone = (f"{VALIDATION}/",) if first == last else redone_tags(DUE_ACTIONS, e, first)
        store.begin(self.program, first, redone)
        before = store.folder.read_summary()
        self.diverged_at = before.get("diverged_at") if before.get("step") == first else None
        # By logged step, computed before training: later it would wait for the steps under way.
        ends = [end for _, end in windows(first, e.train.steps, e.log.every)]
        rates = np.asarray(member.program.schedule(np.array(ends) - 1))
        self._learning_rates = dict(zip(ends, rates.tolist(), strict=True))

    @property
    def is_sound(self) -> bool:
        """Whether every loss so far was finite."""
        return self.diverged_at is None

    def save(self, step: int, state: TrainState) -> None:
        """Saves what `hyla-lm train` would have saved."""
        rows = step * self.program.experiment.train.batch_size
        self.store.save(step, state, {"streams": [{"rows_drawn": rows}], "window": {}})

    def write_window(
        self, task: GeneratedTask, step: int, sums: Sums, speed: dict[str, float]
    ) -> str:
        """Writes the means of a window; returns what a person watches, empty once diverged."""
        objective, metrics = sums
        if self.is_sound and not math.isfinite(float(objective[0])):
            self.diverged_at = step
            print(f"{self.store.folder.path}: the loss is not finite by step {step}; left out.")
        if not self.is_sound:
            return ""
        values = task.logged_metrics(means(to_host(metrics)))
        line = window_tags(values)
        self.store.write(step, {**line, LEARNING_RATE: self._learning_rates[step], **speed})
        return task.describe(values)

    def finish(self, params: Any, validation: dict[str, float], **more: Any) -> dict[str, Any]:
        """The summary, written where the run is at its end."""
        trained = summary_of(self.program, params, self.store.folder.lines())
        trained |= {**more, "diverged_at": self.diverged_at}
        found = {VALIDATION: validation}
        is_finished = self.store.is_saved(trained["step"])
        return self.store.finish(trained, found) if is_finished else {**trained, **found}


class _Training:
    """The loop: at the end of each window of steps look what is owed, then dispatch the next."""

    def __init__(
        self,
        population: Population,
        runs: Sequence[_Run],
        guard: PreemptionGuard,
        progress: Console,
        last: int,
    ):
        self.population, self.runs, self.guard = population, runs, guard
        self.progress, self.last = progress, last
        self.experiment, self.task = population.program.experiment, population.task
        self.validation: list[dict[str, float]] = [{} for _ in runs]
        self._pending: tuple[int, int, Sums] | None = None
        self._compiled: set[int] = set()
        self._started = self._clock = time.monotonic()

    def train(self, first: int) -> list[dict[str, Any]]:
        self._first = first
        self.state = self.population.init() if first == 0 else _stacked_states(self.runs, first)
        for begin, end in windows(first, self.last, self.experiment.log.every):
            self._look(begin)
            sums = self._advance(end - begin)
            self._flush()
            self._pending = (begin, end, sums)
        self._look(self.last)
        more = {"wall_seconds": time.monotonic() - self._started, "runs_at_once": len(self.runs)}
        return [
            run.finish(of_run(self.state.params, index), self.validation[index], **more)
            for index, run in enumerate(self.runs)
        ]

    def _advance(self, steps: int) -> Sums:
        """Dispatches a window; the first of its length compiles, which no speed counts."""
        is_new = steps not in self._compiled
        if is_new:
            self._flush()
        self.state, sums = self.population.advance(self.state, steps)
        if is_new:
            self._compiled.add(steps)
            self._clock = time.monotonic()
        return sums

    def _look(self, step: int) -> None:
        """What the runs owe at a step, decided as by hyla_lm.run.due_actions."""
        for run in self.runs:
            run.store.check()
        e, is_last = self.experiment, step == self.last
        if is_last or at_checkpoint(e, step):
            self._save(step)
        if is_last or at_evaluation(e, step):
            self._evaluate(step)
        if not is_last and self.guard.requested():
            self._save(step)
            raise Preempted(f"stopped after step {step}, which is saved")

    def _flush(self) -> None:
        """Writes the window before."""
        if self._pending is None:
            return
        (begin, end, sums), self._pending = self._pending, None
        host = jax.device_get(sums)
        speed = self._speed(end - begin)
        per_second = speed["perf/tokens_per_second"]
        told = [
            run.write_window(self.task, end, of_run(host, index), speed)
            for index, run in enumerate(self.runs)
        ]
        self.progress.advance(end)
        per_step = (time.monotonic() - self._started) / (end - self._first)
        left = time_left(per_step * (self.last - end))
        self.progress.show_step(
            end, next(filter(None, told), "all diverged"), per_second * len(self.runs), left
        )

    def _speed(self, steps: int) -> dict[str, float]:
        """Of each run in a window."""
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        tokens = self.population.program.tokens_per_step * steps
        return {"perf/tokens_per_second": tokens / seconds, STEP_SECONDS: seconds / steps}

    def _save(self, step: int) -> None:
        if all(run.store.is_saved(step) for run in self.runs):
            return
        self._flush()
        states = jax.device_get(self.state)
        for index, run in enumerate(self.runs):
            run.save(step, jax.tree.map(jnp.asarray, of_run(states, index)))
        self._clock = time.monotonic()

    def _evaluate(self, step: int) -> None:
        self._flush()
        found = self._metrics_of_sets(self.task.evaluation_count(step == self.last))
        self.validation = [
            metrics if run.is_sound else {} for run, metrics in zip(self.runs, found, strict=True)
        ]
        for run, metrics in zip(self.runs, self.validation, strict=True):
            if metrics:
                line = {f"{VALIDATION}/{name}": value for name, value in metrics.items()}
                run.store.write(step, line)
                place = "/".join(run.store.folder.path.parts[-2:])
                self.progress.print(f"step {step}  {place}  {self.task.describe(metrics)}")
        self._clock = time.monotonic()

    def _metrics_of_sets(self, examples: int) -> list[dict[str, float]]:
        """The metrics of each run over so many examples of every evaluation set."""
        found: list[dict[str, float]] = [{} for _ in self.runs]
        for name in self.task.evaluation_names():
            sums = jax.device_get(self.population.evaluate(self.state.params, name, examples))
            for index, metrics in enumerate(found):
                of_set: HostMetrics = to_host(of_run(sums, index))
                of_run_and_set = self.task.logged_metrics(means(of_set))
                metrics |= {f"{name}_{key}": value for key, value in of_run_and_set.items()}
        return found


def windows(first: int, steps: int, every: int) -> list[tuple[int, int]]:
    """Steps (begin, end] between the multiples of `every` after `first`, up to the last."""
    ends = [*range((first // every + 1) * every, steps, every), steps]
    return [(begin, end) for begin, end in zip([first, *ends], ends, strict=False) if end > begin]


def check_schedule(e: Experiment) -> None:
    """Raises UserError where evaluations or checkpoints fall inside a window of steps."""
    named = {
        "TrainConfig.eval_every": e.train.eval_every,
        "CheckpointConfig.every": e.checkpoint.every,
    }
    for name, value in named.items():
        if value % e.log.every:
            raise UserError(
                f"{name} = {value} is no multiple of LogConfig.every = {e.log.every}, the steps "
                "of one dispatch: change one."
            )


def _common_step(stores: Sequence[RunStore]) -> int:
    """The newest step that every run has saved; 0 where there is none."""
    return max(set.intersection(*(set(store.checkpoints.steps()) for store in stores)), default=0)


def _stacked_states(runs: Sequence[_Run], step: int) -> TrainState:
    states = (_restored(run.store, step) for run in runs)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


def _restored(store: RunStore, step: int) -> TrainState:
    try:
        return store.restore(step)[0]
    except Damaged as damage:
        raise UserError(
            f"{str(damage).removesuffix('.')}: move it elsewhere to resume from the step before."
        ) from damage
