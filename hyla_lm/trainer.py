"""The training loop: at each step look what is owed, then step."""

import time
from contextlib import ExitStack, closing
from importlib.metadata import version
from typing import Any

import jax

from hyla_lm.config import UserError
from hyla_lm.experiment import Experiment
from hyla_lm.parallel import multihost
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.running.console import TrainingProgress, show_summary
from hyla_lm.running.duties import look, redone_tags
from hyla_lm.running.program import Program, identity, make_program
from hyla_lm.running.run import Run
from hyla_lm.running.run_folder import RunFolder, check_shared, git_revision
from hyla_lm.running.run_store import RunStore
from hyla_lm.running.step_log import StepLog
from hyla_lm.running.summary import layout_lines, startup_lines
from hyla_lm.running.watchdog import Watchdog
from hyla_lm.tasks.protocol import Task
from hyla_lm.tasks.suite import check_suites
from hyla_lm.train_step import TrainState


def train(experiment: Experiment, workdir: str) -> dict[str, Any]:
    """Trains to the last step, going on from the newest checkpoint; returns the summary.

    Raises Preempted when it is asked to stop, after saving.
    """
    with ExitStack() as stack:
        run, state = _open(experiment, workdir, stack)
        state = train_steps(run, state)
        run.watchdog.waits_for("the end of the run waits for the parameters")
        params = multihost.on_host(state.params)
    if multihost.is_lead():
        program = run.program
        for line in program.task.closing_lines(program.model, params, run.validation):
            print(line)
        print(f"curves: tensorboard --logdir {workdir}")
    return run.summary


def train_steps(run: Run, state: TrainState) -> TrainState:
    """The state after the last step.

    Dispatch is asynchronous: `train_step` returns before the device has begun, the log looks at the
    step before, and the next batch is read meanwhile. Only duties that need the state wait for it.
    """
    last = run.experiment.train.steps
    for step in range(run.first, last):
        look(run, step, state)
        run.watchdog.waits_for(f"step {step + 1} waits for data")
        waiting = time.monotonic()
        host_batch = next(run.batches)
        run.log.waited(time.monotonic() - waiting)
        run.watchdog.waits_for(f"step {step + 1} waits for the device")
        state, output = run.program.train_step(state, run.program.place(host_batch))
        run.log.record(step + 1, output, host_batch["row"])
    look(run, last, state)
    return state


def _open(experiment: Experiment, workdir: str, stack: ExitStack) -> tuple[Run, TrainState]:
    """The run at its newest checkpoint, after every check; what it opens, the stack closes."""
    started_seconds = time.monotonic()
    folder = stack.enter_context(closing(RunFolder(workdir, multihost.is_lead())))
    watchdog = Watchdog(experiment.train.hang_seconds, folder.path)
    stack.enter_context(closing(watchdog))
    check_shared(folder)
    check_suites(experiment.train.suites, experiment.model)
    program = make_program(experiment)
    with watchdog.paused():  # a barrier has a time limit, and names who did not come
        multihost.barrier("the start of the run")
    _check_agreement(program)
    stack.enter_context(jax.set_mesh(program.mesh))
    guard = stack.enter_context(PreemptionGuard())
    watchdog.waits_for("the start waits for the newest checkpoint")
    store = stack.enter_context(closing(RunStore(program, folder)))
    stack.callback(watchdog.waits_for, "the end of the run waits for a save")
    state, data = _newest(program, store)
    first, train = int(state.step), experiment.train
    _show_start(program, state, first)
    store.begin(first, redone_tags(experiment, first))
    shard = multihost.shard_of(program.mesh, train.batch_size, train.seed)
    stream = program.task.train_stream(shard, data.get("streams"))
    batches = stack.enter_context(closing(stream))
    progress = stack.enter_context(TrainingProgress(train.steps, first, multihost.is_lead()))
    log = StepLog(program, store, progress, data.get("window", {}))
    run = Run(
        program, store, shard, batches, log, progress, guard, watchdog, first, started_seconds
    )
    return run, state


def _check_agreement(program: Program[Task]) -> None:
    multihost.check_agreement(
        {
            "configuration": program.experiment.text,
            "model, seed, tokenizer or data": identity(program),
            "version of hyla_lm": [version("hyla_lm"), git_revision()],
        }
    )


def _newest(program: Program[Task], store: RunStore) -> tuple[TrainState, dict[str, Any]]:
    """State and data position of the newest checkpoint, or those of the start."""
    steps, last = store.saved_steps(), program.experiment.train.steps
    if not steps:
        return program.init(), {}
    if steps[-1] > last:
        raise UserError(
            f"{store.folder.path} holds step {steps[-1]}, beyond TrainConfig.steps = {last}: "
            "raise that setting or give another --workdir."
        )
    return store.restore(steps[-1])


def _show_start(program: Program[Task], state: TrainState, first: int) -> None:
    if not multihost.is_lead():
        return
    show_summary(f"hyla_lm {version('hyla_lm')}", startup_lines(program, state.params, first))
    for line in layout_lines(program):
        print(line)
