"""Trains a population of runs to their last step, each in a folder of its own, resumably."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evals.populations.population import Population, of_run
from hyla_lm.config import UserError
from hyla_lm.experiment import read_experiment
from hyla_lm.metrics import HostMetrics, Metrics, means, to_host
from hyla_lm.parallel.preemption import Notice, Preempted
from hyla_lm.running.checkpoint import Checkpointer, check_same_run
from hyla_lm.running.console import TrainingProgress
from hyla_lm.running.program import Program, identity, make_program, meta_of
from hyla_lm.running.run_folder import RunFolder
from hyla_lm.running.summary import summary_of
from hyla_lm.running.tensorboard import TensorBoard
from hyla_lm.tasks.protocol import OBJECTIVE
from hyla_lm.train_step import TrainState


@dataclass(frozen=True)
class Member:
    """One run: its program, the text of its configuration and its folder."""

    program: Program
    gin: str
    folder: RunFolder


def open_member(gin_files: Sequence[str], bindings: Sequence[str], workdir: str) -> Member:
    """A run as `hyla-lm train` would read it, on one device."""
    experiment = read_experiment(gin_files, bindings)
    program = make_program(experiment, jax.devices()[:1])
    return Member(program, experiment.text, RunFolder(workdir))


def compiled(members: Sequence[Member]) -> Population:
    """The runs as one population, compiled: in another thread, while others train."""
    population = Population([member.program for member in members])
    check_schedule(population.program)
    e, task = population.program.experiment, population.task
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
    check_schedule(population.program)
    with jax.set_mesh(population.program.mesh), Notice() as notice, ExitStack() as stack:
        runs = [_Run(member) for member in members]
        first = _common_step(runs)
        for run in runs:
            stack.enter_context(closing(run.folder))
            stack.enter_context(closing(run.open(first)))
        return _Training(population, runs, notice, until).train(first)


class _Run:
    """What one member writes."""

    def __init__(self, member: Member):
        self.member, self.folder = member, member.folder
        keep = member.program.experiment.checkpoint.keep
        self.checkpoints = Checkpointer(self.folder.checkpoints, keep)
        self.train_means: dict[str, float] = {}
        self.diverged_at: int | None = None

    @property
    def is_sound(self) -> bool:
        """Whether every loss so far was finite."""
        return self.diverged_at is None

    def open(self, first: int) -> "_Run":
        """Begins to write, from a step on."""
        self.folder.write("config.gin", self.member.gin)
        self.folder.keep_metrics_until(first)
        self.checkpoints.drop_after(first)
        self.learning_rates = self._learning_rates(first)
        self.board = TensorBoard(self.folder.tensorboard, first or None)
        if first == 0:
            self.board.text("config", f"```\n{self.member.gin}\n```")
        return self

    def _learning_rates(self, first: int) -> dict[int, float]:
        """By logged step, computed before training: later it would wait for the steps under way."""
        e = self.member.program.experiment
        ends = [end for _, end in windows(first, e.train.steps, e.log.every)]
        rates = np.asarray(self.member.program.schedule(np.array(ends) - 1))
        return dict(zip(ends, rates.tolist(), strict=True))

    def restore(self, step: int) -> TrainState:
        program = self.member.program
        check_same_run(self.checkpoints.meta(step)["identity"], identity(program), self.folder.path)
        return self.checkpoints.restore(step, program.abstract_state)[0]

    def save(self, step: int, state: TrainState) -> None:
        """Saves what `hyla-lm train` would have saved."""
        self.folder.mirror()
        rows = step * self.member.program.experiment.train.batch_size
        data = {"streams": [{"rows_drawn": rows}], "window": {}, "evaluation_is_due": False}
        self.checkpoints.save(step, state, data, meta_of(self.member.program, self.member.gin))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.folder.append_metrics(step, values)
        self.board.scalars(step, values)

    def close(self) -> None:
        self.checkpoints.close()
        self.board.close()


class _Training:
    """The loop: dispatch the steps of a window, then look at the window before."""

    def __init__(
        self, population: Population, runs: Sequence[_Run], notice: Notice, until: int | None
    ):
        self.population, self.runs, self.notice = population, runs, notice
        self.experiment = population.program.experiment
        self.last = self.experiment.train.steps if until is None else until
        self.started = time.monotonic()
        self.seconds, self.steps_timed = 0.0, 0
        self._figures: list[dict[str, float]] = []
        self._pending: tuple[int, int, Metrics] | None = None

    def train(self, first: int) -> list[dict[str, Any]]:
        e, population = self.experiment, self.population
        self.state = population.init() if first == 0 else _stacked_states(self.runs, first)
        self._clock = time.monotonic()
        with TrainingProgress(e.train.steps, first) as progress:
            for begin, end in windows(first, self.last, e.log.every):
                self.state, metrics = population.advance(self.state, end - begin)
                self._log_pending(progress)
                self._pending = (begin, end, metrics)
                is_last = end == self.last
                if is_last or end % e.train.eval_every == 0:
                    self._log_pending(progress)
                    self._log_evaluation(end, progress)
                stops = self.notice.came()
                if stops or is_last or end % e.checkpoint.every == 0:
                    self._log_pending(progress)
                    self._save(end)
                if stops and not is_last:
                    raise Preempted(f"stopped after step {end}, which is saved")
        return self._summaries()

    def _log_pending(self, progress: TrainingProgress) -> None:
        if self._pending is None:
            return
        (begin, end, metrics), self._pending = self._pending, None
        host = jax.device_get(metrics)
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        if self.steps_timed or begin > 0:
            self.seconds += seconds
        self.steps_timed += end - begin
        speed = self._tokens_per_step() * (end - begin) / seconds
        for index, run in enumerate(self.runs):
            self._log_run(run, end, to_host(of_run(host, index)), speed)
        progress.advance(end)
        described = [self.population.task.describe(r.train_means) for r in self.runs if r.is_sound]
        progress.show(end, next(iter(described), "all diverged"), speed * len(self.runs))

    def _log_run(self, run: _Run, step: int, sums: HostMetrics, speed: float) -> None:
        if not run.is_sound:
            return
        if not math.isfinite(sums.pop(OBJECTIVE)[0]):
            run.diverged_at = step
            print(f"{run.folder.path}: the loss is not finite by step {step}; it is left out.")
            return
        run.train_means = self.population.task.figures(means(sums))
        line = {f"train/{name}": value for name, value in run.train_means.items()}
        line["train/learning_rate"] = run.learning_rates[step]
        run.write(step, {**line, "perf/tokens_per_second": speed})

    def _log_evaluation(self, step: int, progress: TrainingProgress) -> None:
        figures = self._figures = self._evaluate(final=False)
        for run, values in zip(self.runs, figures, strict=True):
            if not run.is_sound:
                continue
            run.write(step, {f"validation/{name}": value for name, value in values.items()})
            described = self.population.task.describe(values)
            place = "/".join(run.folder.path.parts[-2:])
            progress.say(f"step {step}  {place}  {described}")
        self._clock = time.monotonic()

    def _evaluate(self, final: bool) -> list[dict[str, float]]:
        task = self.population.task
        examples = task.evaluation_count(final)
        figures: list[dict[str, float]] = [{} for _ in self.runs]
        for name in task.evaluation_names():
            sums = jax.device_get(self.population.evaluate(self.state.params, name, examples))
            for index, values in enumerate(figures):
                run_sums = to_host(of_run(sums, index))
                run_sums.pop(OBJECTIVE)
                found = task.figures(means(run_sums))
                values |= {f"{name}_{key}": value for key, value in found.items()}
        return figures

    def _save(self, step: int) -> None:
        states = jax.device_get(self.state)
        for index, run in enumerate(self.runs):
            run.save(step, jax.tree.map(jnp.asarray, of_run(states, index)))
        self._clock = time.monotonic()

    def _summaries(self) -> list[dict[str, Any]]:
        task = self.population.task
        is_whole = task.evaluation_count(False) == task.evaluation_count(True)
        validation = self._figures if is_whole and self._figures else self._evaluate(final=True)
        tokens = self._tokens_per_step() * self.steps_timed
        speed = tokens / self.seconds if self.seconds else 0.0
        summaries = []
        for index, run in enumerate(self.runs):
            params = of_run(self.state.params, index)
            figures = validation[index] if run.is_sound else {}
            summary = summary_of(run.member.program, params, run.train_means, figures, speed)
            summary |= {"wall_seconds": time.monotonic() - self.started}
            summary |= {"runs_at_once": len(self.runs), "diverged_at": run.diverged_at}
            run.checkpoints.wait()
            if self.last == self.experiment.train.steps:
                run.folder.write_summary(summary)
            summaries.append(summary)
        return summaries

    def _tokens_per_step(self) -> int:
        return self.population.task.tokens_per_batch(self.experiment.train.batch_size)


def windows(first: int, steps: int, every: int) -> list[tuple[int, int]]:
    """Steps (begin, end] between the multiples of `every` after `first`, up to the last."""
    ends = [*range((first // every + 1) * every, steps, every), steps]
    return [(begin, end) for begin, end in zip([first, *ends], ends, strict=False) if end > begin]


def check_schedule(program: Program) -> None:
    """Raises UserError where evaluations or checkpoints fall inside a window of steps."""
    e = program.experiment
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


def _common_step(runs: Sequence[_Run]) -> int:
    """The newest step that every run has saved; 0 where there is none."""
    common = set.intersection(*(set(run.checkpoints.steps()) for run in runs))
    return max(common, default=0)


def _stacked_states(runs: Sequence[_Run], step: int) -> TrainState:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(run.restore(step) for run in runs))
