"""The training loop: at each step look what is owed, then step."""

import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import jax

from hyla_lm.checkpoint.beginning import Beginning, begin
from hyla_lm.config.experiment import Experiment
from hyla_lm.errors import UserError
from hyla_lm.logs.console import TrainingProgress, show_summary
from hyla_lm.logs.costs import SECONDS, Costs
from hyla_lm.logs.pace import Pace, intervals
from hyla_lm.logs.step_log import StepLog
from hyla_lm.package import git_revision
from hyla_lm.parallel import multihost
from hyla_lm.parallel.mesh import alone
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.duties import look, redone_tags, save
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.profiling import Profiler
from hyla_lm.run.program import Program, compile_step, identity, make_program
from hyla_lm.run.run import Run
from hyla_lm.run.store import RunStore, finished_lines, finished_summary
from hyla_lm.run.summary import layout_lines, startup_lines
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.signals import end_on_error_within
from hyla_lm.tasks.protocol import Task
from hyla_lm.tasks.suite import check_suites
from hyla_lm.train_step import TrainState


@dataclass(frozen=True)
class Start:
    """Where training goes on: at a step, or the newest checkpoint; whether numerics may differ."""

    step: int | None = None
    strict_numerics: bool = False


def train(experiment: Experiment, workdir: str, start: Start = Start()) -> dict[str, Any]:
    """Trains to the last step, going on from the newest checkpoint; returns the summary.

    Raises Preempted when it is asked to stop, after saving.
    """
    started_seconds = time.monotonic()
    with ExitStack() as stack:
        folder, watchdog = _enter(experiment, workdir, stack)
        summary = finished_summary(folder, experiment) if start.step is None else {}
        if summary:
            _tell(finished_lines(experiment, workdir, summary))
            return summary
        run, state = _open(experiment, folder, watchdog, start, started_seconds, stack)
        state = train_steps(run, state)
        run.watchdog.waits_for("the end of the run waits for the parameters")
        params = multihost.on_host(state.params)
    program = run.program
    if multihost.is_lead():
        with alone():
            _tell(program.task.closing_lines(program.model, params, run.validation))
    _tell([f"curves: tensorboard --logdir {workdir}"])
    return run.summary


def train_steps(run: Run, state: TrainState) -> TrainState:
    """The state after the last step.

    Dispatch is asynchronous: `train_step` returns before the device has begun, the log looks at the
    step before, and the next batch is read meanwhile. Only duties that need the state wait for it.
    """
    last = run.experiment.train.steps
    for step in range(run.first, last):
        look(run, step, state)
        run.profiler.begin(step)
        with run.profiler.step(step + 1):
            run.watchdog.waits_for(f"step {step + 1} waits for data")
            waiting = time.monotonic()
            host_batch = next(run.batches)
            run.log.waited(time.monotonic() - waiting)
            run.watchdog.waits_for(f"step {step + 1} waits for the device")
            state, output = run.program.train_step(state, run.program.place(host_batch))
            run.log.record(step + 1, output, host_batch["row"])
        run.profiler.end(step + 1)
    look(run, last, state)
    return state


def _enter(experiment: Experiment, workdir: str, stack: ExitStack) -> tuple[RunFolder, Watchdog]:
    """The folder, which all processes see and no other run has, and who watches the run."""
    folder = stack.enter_context(closing(RunFolder(workdir, multihost.is_lead())))
    watchdog = Watchdog(experiment.train.hang_seconds, folder.path)
    stack.enter_context(closing(watchdog))
    folder.check_shared()
    return folder, watchdog


def _open(
    experiment: Experiment,
    folder: RunFolder,
    watchdog: Watchdog,
    start: Start,
    started_seconds: float,
    stack: ExitStack,
) -> tuple[Run, TrainState]:
    """The run at its newest checkpoint, after every check; what it opens, the stack closes."""
    check_suites(experiment.train.suites, experiment.model)
    program = make_program(experiment)
    with watchdog.paused():  # a barrier has a time limit, and names who did not come
        multihost.barrier("the start of the run")
    _check_agreement(program)
    stack.enter_context(jax.set_mesh(program.mesh))
    seconds = experiment.checkpoint.stop_seconds
    guard = stack.enter_context(PreemptionGuard(seconds))
    watchdog.waits_for("the start waits for a checkpoint")
    store = stack.enter_context(closing(RunStore(program, folder)))
    stack.callback(watchdog.waits_for, "the end of the run waits for a save")
    begun = begin(program, store, start.step)
    state, data, train = begun.state, begun.data, experiment.train
    first = int(state.step)
    costs = Costs(folder, data.get(SECONDS, {}), started_seconds)
    stack.callback(costs.keep)
    _show_start(program, begun)
    if first < train.steps:
        watchdog.waits_for("the start waits for the compiler")
        with costs.measured("compile_seconds"):
            program = compile_step(program)
        _check_numerics(program, store, first, start.strict_numerics)
    stack.push(end_on_error_within(seconds))
    guard.begin()
    store.begin(program, first, redone_tags(experiment, first))
    shard = multihost.shard_of(program.mesh, train.batch_size, train.seed)
    stream = program.task.train_stream(shard, data.get("streams"))
    batches = stack.enter_context(closing(stream))
    progress = stack.enter_context(TrainingProgress(train.steps, first, multihost.is_lead()))
    pace = Pace(train.steps, intervals(experiment))
    log = StepLog(program, store, progress, pace, costs, data.get("window", {}))
    profiler = stack.enter_context(closing(Profiler(experiment, folder, log, progress, watchdog)))
    run = Run(
        program, store, shard, batches, log, progress, pace, costs, guard, watchdog, profiler, first
    )
    run.started_seconds = started_seconds
    if begun.must_be_saved:
        save(run, first, state)
    return run, state


def _check_agreement(program: Program[Task]) -> None:
    multihost.check_agreement(
        {
            "configuration": program.experiment.text,
            "model, seed, tokenizer or data": identity(program),
            "version of hyla_lm": [version("hyla_lm"), git_revision()],
        }
    )


def _check_numerics(program: Program[Task], store: RunStore, first: int, strict: bool) -> None:
    """Says, or with `strict` refuses, that a resumed run may not go on to the same bits."""
    other = store.other_numerics(program) if first else ""
    if other and strict:
        raise UserError(f"--strict_numerics: since the checkpoint of step {first} {other}.")
    if other and multihost.is_lead():
        print(f"other numerics than those of step {first}, so maybe other bits: {other}")


def _tell(lines: Iterable[str]) -> None:
    for line in lines if multihost.is_lead() else ():
        print(line)


def _show_start(program: Program[Task], begun: Beginning) -> None:
    if not multihost.is_lead():
        return
    lines = startup_lines(program, begun.state.params, int(begun.state.step))
    show_summary(f"hyla_lm {version('hyla_lm')}", {**lines, **begun.summary})
    _tell(layout_lines(program))
