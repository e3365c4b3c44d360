"""What a run owes at a step: decided by the step alone, done before the update that follows.

On resume the duties of the checkpoint's step are done again, and their lines replaced. A new duty
is a function and its line in DUTIES.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hyla_lm.config.experiment import Experiment
from hyla_lm.ending import Preempted
from hyla_lm.logs.costs import SECONDS
from hyla_lm.parallel import multihost
from hyla_lm.parallel.mesh import alone
from hyla_lm.run import evaluation
from hyla_lm.run.canary import BOUNDS, is_within, too_far_apart
from hyla_lm.run.details import ATTENTION, look_inside
from hyla_lm.run.run import Run
from hyla_lm.run.summary import summary_of, training_kernels
from hyla_lm.tasks.language_model import LanguageModel, LanguageModelTask
from hyla_lm.tasks.suite import SUITES, Suite, run_suites, tags
from hyla_lm.train_step import TrainState

CANARY, VALIDATION, VALIDATION_SETS = "canary", "validation", "validation_sets"
SAMPLES = "text/samples"


def always(experiment: Experiment, step: int) -> bool:
    return True


def at_end(experiment: Experiment, step: int) -> bool:
    return step == experiment.train.steps


def before_end(experiment: Experiment, step: int) -> bool:
    return step < experiment.train.steps


def at_canary(experiment: Experiment, step: int) -> bool:
    return experiment.canary.every > 0 and step % experiment.canary.every == 0


def at_checkpoint(experiment: Experiment, step: int) -> bool:
    return _every(experiment.checkpoint.every, step) or at_end(experiment, step)


def at_evaluation(experiment: Experiment, step: int) -> bool:
    return _every(experiment.train.eval_every, step) or at_end(experiment, step)


def at_details(experiment: Experiment, step: int) -> bool:
    every = experiment.log.details_every
    return every > 0 and (_every(every, step) or at_end(experiment, step))


def at_samples(experiment: Experiment, step: int) -> bool:
    task = experiment.train.task
    is_wanted = isinstance(task, LanguageModel) and task.samples > 0
    return is_wanted and at_evaluation(experiment, step)


def at_suites(experiment: Experiment, step: int) -> bool:
    return bool(due_suites(experiment, step))


def due_suites(experiment: Experiment, step: int) -> list[Suite]:
    """The suites that train when the run stands at this step."""
    suites = experiment.train.suites
    return [s for s in suites if at_end(experiment, step) or _every(s.every or 0, step)]


def _every(steps: int, step: int) -> bool:
    return steps > 0 and step > 0 and step % steps == 0


def check(run: Run, step: int, state: TrainState) -> None:
    """Raises what failed in the background."""
    run.store.check()


def compare_kernels(run: Run, step: int, state: TrainState) -> None:
    """Differences of the kernel that trains and the reference; raises Unreliable above the bound.

    Each time it is the turn of the next evaluation set, whose first micro-batch is taken.
    """
    run.log.flush()
    p, canary = run.program, run.experiment.canary
    sets = list(p.task.evaluation_sets(run.shard, False).values())
    batch = next(iter(sets[step // canary.every % len(sets)]))
    compared = p.canary_step(state.params, p.place(batch))
    found = {name: float(value) for name, value in compared.items()}
    run.store.write(step, {f"{CANARY}/{name}": value for name, value in found.items()})
    bound = BOUNDS[run.experiment.model.dtype] if canary.bound is None else canary.bound
    if not is_within(found, bound):
        raise too_far_apart(step, found, bound, training_kernels(p))
    run.log.restart_clock()


def save(run: Run, step: int, state: TrainState) -> None:
    """Starts a checkpoint, with the position in the data and the window not yet logged."""
    if run.store.is_saved(step):
        return
    _waits_for(run, step, "the device")
    run.log.flush()
    with run.costs.measured("save_seconds"):
        _waits_for(run, step, "the other processes")
        streams = multihost.gather_shards(run.batches.state(), run.shard)
        _waits_for(run, step, "a save")
        data = {"streams": streams, "window": run.log.window, SECONDS: run.costs.saved()}
        run.store.save(step, state, data)
    run.log.restart_clock()


def evaluate(run: Run, step: int, state: TrainState) -> None:
    """Validation metrics, of the whole sets at the end; raises Preempted, saved, on a request."""
    _waits_for(run, step, "the device")
    run.log.flush()
    is_final, waits_for = at_end(run.experiment, step), partial(_waits_for, run, step)
    try:
        with run.costs.measured("evaluation_seconds"):
            found = evaluation.evaluate(
                run.program, state.params, step, run.shard, is_final, waits_for, run.guard
            )
    except Preempted:
        save(run, step, state)
        why = f"stopped after step {step}, which is saved; its evaluation is done again"
        raise Preempted(why) from None
    found.write_documents(run.store.folder)
    line = {f"{VALIDATION}/{name}": value for name, value in found.metrics.items()}
    run.store.write(step, line | run.costs.take())
    run.progress.say(f"step {step}  validation {run.program.task.describe(found.metrics)}")
    run.log.restart_clock()
    run.validation = found.metrics


def show_samples(run: Run, step: int, state: TrainState) -> None:
    """Texts that the model writes; the lead process samples them from a copy of the parameters."""
    _waits_for(run, step, "the parameters")
    run.log.flush()
    task, params = run.program.task, multihost.on_host(state.params)
    if multihost.is_lead():
        assert isinstance(task, LanguageModelTask)
        _waits_for(run, step, "samples")
        with alone():
            run.store.show(step, {SAMPLES: task.samples(run.program.model, params)})
    run.log.restart_clock()


def train_suites(run: Run, step: int, state: TrainState) -> None:
    """The suites catch up with this step, once it is saved; raises Preempted on a request."""
    save(run, step, state)
    _waits_for(run, step, "a save")
    run.store.wait()
    e, workdir = run.experiment, run.store.folder.path
    suites, part = due_suites(e, step), step / e.train.steps
    try:
        with run.progress.paused(), run.watchdog.paused():
            run.suites = run_suites(suites, e.model, workdir, part, run.guard)
    except Preempted as stop:
        raise Preempted(f"{stop}; of this run step {step} is saved") from None
    run.store.write(step, tags(run.suites))
    run.log.restart_clock()


def finish(run: Run, step: int, state: TrainState) -> None:
    """Writes summary.json; of a run that was finished, only what is evaluated can change."""
    lines = run.store.folder.lines()
    trained = summary_of(run.program, state.params, lines, run.store.begun_at)
    trained["wall_seconds"] = time.monotonic() - run.started_seconds
    _waits_for(run, step, "a save")
    found: dict[str, Any] = {VALIDATION: run.validation}
    found |= {SUITES: run.suites} if run.suites else {}
    if isinstance(run.program.task, LanguageModelTask) and (sets := run.program.task.named_sets()):
        found |= {VALIDATION_SETS: sets}
    run.summary = run.store.finish(trained, found)


def stop(run: Run, step: int, state: TrainState) -> None:
    """Ends a run that is asked to: saves and raises Preempted."""
    if run.guard.requested():
        save(run, step, state)
        raise Preempted(f"stopped after step {step}, which is saved")


def _waits_for(run: Run, step: int, what: str) -> None:
    run.watchdog.waits_for(f"step {step} waits for {what}")


class Duty(NamedTuple):
    """When it is due, by experiment and step, what is done then, and how tags it writes begin."""

    is_due: Callable[[Experiment, int], bool]
    do: Callable[[Run, int, TrainState], None]
    tags: tuple[str, ...] = ()


DUTIES = (
    Duty(always, check),
    Duty(at_canary, compare_kernels, (f"{CANARY}/",)),
    Duty(at_checkpoint, save),
    Duty(at_evaluation, evaluate, (f"{VALIDATION}/",)),
    Duty(at_details, look_inside, (f"{ATTENTION}/",)),
    Duty(at_samples, show_samples),
    Duty(at_suites, train_suites, (f"{SUITES}/",)),
    Duty(at_end, finish),
    Duty(before_end, stop),
)


def look(run: Run, step: int, state: TrainState) -> None:
    """Does what the run owes at a step, in order."""
    for duty in DUTIES:
        if duty.is_due(run.experiment, step):
            _waits_for(run, step, f"its duty {duty.do.__name__!r}")
            with run.pace.measured(duty.do.__name__):
                duty.do(run, step, state)


def redone_tags(experiment: Experiment, step: int) -> tuple[str, ...]:
    """How the tags begin that a run writes again when it goes on from this step."""
    return tuple(tag for duty in DUTIES if duty.is_due(experiment, step) for tag in duty.tags)
