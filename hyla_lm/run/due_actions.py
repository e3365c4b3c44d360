"""What a run does between its steps: it follows from the step, and is done before the next update.

On resume the due actions of the checkpoint's step are done again, and their lines replaced. A new
one is a function and its line in DUE_ACTIONS. A save comes before an evaluation, so that a kill
during the evaluation costs no more than that.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.diagnostics.attention import figures, pictures
from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig
from hyla_lm.parallel import processes
from hyla_lm.parallel.mesh import single_device
from hyla_lm.run import evaluation
from hyla_lm.run.run import DueAction, Run
from hyla_lm.run.summary import summary_of
from hyla_lm.tasks.language_model import LanguageModel, LanguageModelTask
from hyla_lm.tasks.protocol import Suite

VALIDATION, SAMPLES, SUITES = "validation", "text/samples", "suites"


def always(experiment: Experiment, step: int) -> bool:
    return True


def at_end(experiment: Experiment, step: int) -> bool:
    return step == experiment.train.steps


def before_end(experiment: Experiment, step: int) -> bool:
    return step < experiment.train.steps


def at_checkpoint(experiment: Experiment, step: int) -> bool:
    return _every(experiment.checkpoint.every, step) or at_end(experiment, step)


def at_evaluation(experiment: Experiment, step: int) -> bool:
    return _every(experiment.train.eval_every, step) or at_end(experiment, step)


def at_diagnostics(experiment: Experiment, step: int) -> bool:
    every = experiment.log.details_every
    return every > 0 and (_every(every, step) or at_end(experiment, step))


def at_samples(experiment: Experiment, step: int) -> bool:
    task = experiment.train.task
    is_wanted = isinstance(task, LanguageModel) and task.samples > 0
    return is_wanted and at_evaluation(experiment, step)


def at_suites(experiment: Experiment, step: int) -> bool:
    return bool(due_suites(experiment, step))


def due_suites(experiment: Experiment, step: int) -> list[Suite]:
    """The suites that train at this step."""
    suites = experiment.train.suites
    return [s for s in suites if at_end(experiment, step) or _every(s.every or 0, step)]


def _every(steps: int, step: int) -> bool:
    return steps > 0 and step > 0 and step % steps == 0


def check_suites(suites: Sequence[Suite], model: ModelConfig) -> None:
    """Raises UserError for suites that cannot run; call it before training."""
    if not suites:
        return
    names = [suite.name for suite in suites]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"TrainConfig.suites has {name!r} twice: take one out or change its name."
            )
    if jax.process_count() > 1:
        raise UserError(
            f"TrainConfig.suites run in one process, and this run has {jax.process_count()}: leave "
            "them out, and give the same command with them on one host when training is over."
        )
    for suite in suites:
        suite.check_model(model)


def check_background(run: Run, step: int) -> None:
    """Raises what failed in the background."""
    run.store.check()


def save(run: Run, step: int) -> None:
    """Starts a checkpoint, with the position in the data and the window not yet logged."""
    if run.store.is_saved(step):
        return
    run.log.flush()
    with run.clock.measured("save_seconds"):
        run.waits_for(step, "the other processes")
        streams = processes.gather_shards(run.batches.get_state(), run.shard)
        run.waits_for(step, "a save")
        run.store.save(step, run.state, {"streams": streams, "window": run.log.window})


def evaluate(run: Run, step: int) -> None:
    """Validation metrics, of the whole sets at the end; raises Preempted, saved, on a request."""
    p, is_final = run.program, at_end(run.experiment, step)

    def before_batch() -> None:
        run.waits_for(step, "a batch of its evaluation")
        if run.guard.requested():
            save(run, step)
            raise Preempted(f"stopped in the evaluation of step {step}, which is saved")

    with run.clock.measured("evaluation_seconds"):
        evaluated = evaluation.evaluate(
            p, run.state.params, step, run.shard, is_final, before_batch
        )
    evaluated.write_documents(run.folder)
    line = {f"{VALIDATION}/{name}": value for name, value in evaluated.metrics.items()}
    run.store.write(step, line | run.clock.noted())
    run.console.print(f"step {step}  validation {p.task.describe(evaluated.metrics)}")
    run.validation = evaluated.metrics


def diagnose_attention(run: Run, step: int) -> None:
    """Writes figures and pictures of the first batch of the first evaluation set."""
    p = run.program
    with run.clock.measured("details_seconds"):
        batches = next(iter(p.task.evaluation_sets(run.shard, False).values()))
        batch = p.to_devices(next(iter(batches)))
        diagnostics = jax.device_get(run.attention_diagnostics(run.state.params, batch))
        if processes.is_process_0():
            run.store.show(step, pictures(diagnostics))
    run.store.write(step, figures(diagnostics) | run.clock.noted())


def write_samples(run: Run, step: int) -> None:
    """Texts that the model writes; process 0 samples them from a copy of the parameters."""
    run.waits_for(step, "the parameters")
    task, params = run.program.task, processes.on_host(run.state.params)
    if processes.is_process_0():
        assert isinstance(task, LanguageModelTask)
        run.waits_for(step, "samples")
        with single_device():
            texts = task.samples(run.program.model, params)
        run.store.show(step, {SAMPLES: "\n\n".join(f"```\n{text}\n```" for text in texts)})


def train_suites(run: Run, step: int) -> None:
    """The suites catch up with this step, once it is saved; raises Preempted on a request."""
    save(run, step)
    run.waits_for(step, "a save")
    run.store.wait()
    share = step / run.experiment.train.steps
    run.suites = {}
    with run.watchdog.paused():
        for suite in due_suites(run.experiment, step):
            stop_if_asked(run, step)
            run.console.print(f"suite {suite.name}: training to {share:.0%} of its steps")
            folder = str(run.folder.path / SUITES / suite.name)
            run.suites[suite.name] = suite.run(run.experiment.model, folder, share)
    run.store.write(
        step,
        {
            f"{SUITES}/{suite}/{name}": value
            for suite, metrics in run.suites.items()
            for name, value in metrics.items()
        },
    )


def write_summary(run: Run, step: int) -> None:
    """Writes summary.json."""
    trained = summary_of(run.program, run.state.params, run.folder.lines())
    trained["wall_seconds"] = time.monotonic() - run.began
    run.waits_for(step, "a save")
    evaluated: dict[str, Any] = {VALIDATION: run.validation}
    evaluated |= {SUITES: run.suites} if run.suites else {}
    run.summary = run.store.finish(trained, evaluated)


def stop_if_asked(run: Run, step: int) -> None:
    """Ends a run that is interrupted: saves and raises Preempted."""
    if run.guard.requested():
        save(run, step)
        raise Preempted(f"stopped after step {step}, which is saved")


# In order: a kill during a long evaluation costs only the evaluation.
DUE_ACTIONS = (
    DueAction(always, check_background, waits=False),
    DueAction(at_checkpoint, save),
    DueAction(at_evaluation, evaluate, (f"{VALIDATION}/",)),
    DueAction(at_diagnostics, diagnose_attention, ("attention/",)),
    DueAction(at_samples, write_samples),
    DueAction(at_suites, train_suites, (f"{SUITES}/",)),
    DueAction(at_end, write_summary),
    DueAction(before_end, stop_if_asked, waits=False),
)
