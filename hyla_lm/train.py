"""The training loop: before each step do what is due, then step."""

import time
from collections.abc import Iterable
from contextlib import ExitStack, closing
from typing import Any

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.ending import UNAVAILABLE, status_of
from hyla_lm.parallel import processes
from hyla_lm.parallel.mesh import single_device
from hyla_lm.run import due_actions
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.program import make_program
from hyla_lm.run.run import Run
from hyla_lm.run.store import finished_summary
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.tasks.protocol import HostBatch


def train(experiment: Experiment, workdir: str, step: int | None = None) -> dict[str, Any]:
    """Trains to the last step, resuming from a step or the newest checkpoint; returns the summary.

    Raises Preempted when the run is interrupted, after saving.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(closing(RunFolder(workdir, processes.is_process_0())))
        watchdog = Watchdog(experiment.train.hang_seconds)
        stack.enter_context(closing(watchdog))
        folder.check_shared()
        summary = finished_summary(folder, experiment) if step is None else {}
        if summary:
            values = summary.get("validation", {}).items()
            reached = ", ".join(f"{name} {value:.4f}" for name, value in values)
            _print([f"{workdir} is finished at step {summary['step']:,}; validation {reached}"])
            return summary
        due_actions.check_suites(experiment.train.suites, experiment.model)
        program = make_program(experiment)
        run = Run(program, folder, watchdog, due_actions.DUE_ACTIONS, step, began)
        stack.enter_context(run)
        if run.must_be_saved:
            due_actions.save(run, run.first)
        train_steps(run)
        watchdog.waits_for("the end of the run waits for the parameters")
        params = processes.on_host(run.state.params)
    if processes.is_process_0():
        with single_device():
            _print(program.task.closing_lines(program.model, params, run.validation))
    _print([f"curves: tensorboard --logdir {workdir}"])
    return run.summary


def train_steps(run: Run) -> None:
    """Trains to the last step.

    Dispatch is asynchronous: `train_step` returns before the device has begun, the log reads the
    step before, and the next batch is read meanwhile. Only due actions that need the state wait.
    """
    step = run.first
    while step < run.last:
        run.run_due_actions(step)
        step = run.next_step(step)
        with run.profiler.step(step):
            host_batch = next_batch(run, step)
            run.waits_for(step, "the device")
            run.state, output = run.program.train_step(
                run.state, run.program.to_devices(host_batch)
            )
            run.log.record(step, output, host_batch["row"])
    run.run_due_actions(run.last)


def next_batch(run: Run, step: int) -> HostBatch:
    """The batch of a step; where reading fails in a way that may pass, the step before is saved."""
    run.waits_for(step, "data")
    try:
        with run.clock.waiting_for_data():
            return next(run.batches)
    except Exception as error:
        if status_of(error) == UNAVAILABLE and jax.process_count() == 1:  # others would not save
            due_actions.save(run, step - 1)
        raise


def _print(lines: Iterable[str]) -> None:
    for line in lines if processes.is_process_0() else ():
        print(line)
