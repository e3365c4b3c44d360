"""The training loop: dispatch a step, then look at the one before it."""

import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax

from hyla_lm import config
from hyla_lm.checkpoint import Checkpointer, check_same_run
from hyla_lm.console import TrainingProgress, show_summary
from hyla_lm.evaluate import evaluate
from hyla_lm.experiment import Experiment
from hyla_lm.metrics import HostMetrics, means
from hyla_lm.multihost import gather
from hyla_lm.report import startup_lines, summary_of
from hyla_lm.run_folder import RunFolder
from hyla_lm.setup import Program, make_program
from hyla_lm.step_log import StepLog
from hyla_lm.task import OBJECTIVE, Share
from hyla_lm.tensorboard import TensorBoard
from hyla_lm.train_step import TrainState


def train(experiment: Experiment, workdir: str) -> dict[str, Any]:
    """Trains to the last step, going on from the newest checkpoint; returns the summary."""
    folder = RunFolder(workdir)
    program = make_program(experiment)
    with jax.set_mesh(program.mesh):
        return _Run(program, folder).train()


def identity(program: Program) -> dict[str, Any]:
    """What must be equal for a run to be continued, by the names its user knows."""
    experiment = program.experiment
    named = {"ModelConfig": config.as_dict(experiment.model)}
    seed = {"TrainConfig": {"seed": experiment.train.seed}}
    return {**named, **seed, "data": program.task.identity()}


class _Run:
    """One process's run of a program in a folder."""

    def __init__(self, program: Program, folder: RunFolder):
        self.program, self.folder = program, folder
        self.train_config = program.experiment.train
        self.share = Share(jax.process_index(), jax.process_count())
        self.checkpoints = Checkpointer(folder.checkpoints, program.experiment.checkpoint.keep)
        self.started = time.monotonic()

    def train(self) -> dict[str, Any]:
        state, data = self._restore_or_init()
        first = int(state.step)
        params_line = startup_lines(self.program, state.params, first)
        show_summary(f"hyla_lm {version('hyla_lm')}", params_line)
        self.folder.write("config.gin", config.operative())
        self.folder.keep_metrics_until(first)
        board = TensorBoard(self.folder.tensorboard, first or None)
        if first == 0:
            board.text("config", f"```\n{config.operative()}\n```")
        log = StepLog(self.program, self.folder, board, data.get("window", {}))
        with TrainingProgress(self.train_config.steps, first) as progress:
            state = self._loop(state, data.get("streams"), log, progress)
        validation = self._evaluate(state, final=True)
        train_means = log.last_means
        self.checkpoints.close()
        summary = summary_of(self.program, state.params, train_means, validation, log)
        summary["wall_seconds"] = time.monotonic() - self.started
        self.folder.write_summary(summary)
        board.close()
        for line in self.program.task.closing_lines(self.program.model, state.params, validation):
            print(line)
        print(f"curves: tensorboard --logdir {self.folder.path}")
        return summary

    def _restore_or_init(self) -> tuple[TrainState, dict[str, Any]]:
        step = self.checkpoints.latest_step()
        if step is None:
            return self.program.init(), {}
        saved = self.checkpoints.meta(step)["identity"]
        check_same_run(saved, identity(self.program), self.folder.path)
        return self.checkpoints.restore(step, self.program.abstract_state)

    def _loop(
        self,
        state: TrainState,
        stream_states: list[dict[str, Any]] | None,
        log: StepLog,
        progress: TrainingProgress,
    ) -> TrainState:
        c = self.train_config
        stream = self.program.task.train_stream(c.batch_size, c.seed, self.share, stream_states)
        first = int(state.step)
        host_batch = next(stream) if first < c.steps else None
        for step in range(first + 1, c.steps + 1):
            assert host_batch is not None
            position = stream.state()
            batch, rows = self.program.place(host_batch), host_batch["row"]
            state, output = self.program.train_step(state, batch)
            log.started(step, output, rows, progress)
            waiting = time.monotonic()
            if step < c.steps:
                host_batch = next(stream)
            log.waited(time.monotonic() - waiting)
            last = step == c.steps
            if last or step % c.eval_every == 0:
                log.finish(progress)
                self._evaluate_and_log(step, state, log, progress)
            if last or step % self.program.experiment.checkpoint.every == 0:
                log.finish(progress)
                streams = gather(position)
                self._save(step, state, {"streams": streams, "window": log.window})
            self.checkpoints.check()
        log.finish(progress)
        stream.close()
        return state

    def _save(self, step: int, state: TrainState, data: Mapping[str, Any]) -> None:
        meta = {
            "identity": identity(self.program),
            "gin": config.operative(),
            "versions": {name: version(name) for name in ("hyla_lm", "jax", "flax", "optax")},
        }
        self.checkpoints.save(step, state, data, meta)

    def _evaluate_and_log(
        self, step: int, state: TrainState, log: StepLog, progress: TrainingProgress
    ) -> None:
        values = self._evaluate(state, final=False)
        log.write(step, {f"validation/{name}": value for name, value in values.items()})
        progress.say(f"step {step}  validation loss {values['loss_nats']:.4f}")
        log.restart_clock()

    def _evaluate(self, state: TrainState, final: bool) -> dict[str, float]:
        batches = self.program.task.evaluation_batches(
            self.train_config.batch_size, self.share, final
        )
        sums: HostMetrics = evaluate(
            self.program.evaluation_step, state.params, batches, self.program.place
        )
        return {name: value for name, value in means(sums).items() if name != OBJECTIVE}
