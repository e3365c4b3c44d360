"""The training loop: dispatch a step, then look at the one before it."""

import time
from collections.abc import Mapping
from contextlib import closing
from importlib.metadata import version
from typing import Any

import jax

from hyla_lm.config import UserError
from hyla_lm.experiment import Experiment
from hyla_lm.parallel import multihost
from hyla_lm.parallel.preemption import Notice, Preempted
from hyla_lm.running.checkpoint import Checkpointer, check_same_run
from hyla_lm.running.console import TrainingProgress, show_summary
from hyla_lm.running.evaluation import evaluate_sets
from hyla_lm.running.program import Program, identity, make_program, meta_of
from hyla_lm.running.run_folder import RunFolder, git_revision
from hyla_lm.running.step_log import StepLog
from hyla_lm.running.summary import layout_lines, startup_lines, summary_of
from hyla_lm.running.tensorboard import TensorBoard
from hyla_lm.tasks.suite import SUITES, check_suites, run_suites, tags
from hyla_lm.tasks.suite import due as suites_due
from hyla_lm.train_step import TrainState


def train(experiment: Experiment, workdir: str) -> dict[str, Any]:
    """Trains to the last step, going on from the newest checkpoint; returns the summary.

    Raises Preempted when it is asked to stop, after saving.
    """
    gin = experiment.text
    with closing(RunFolder(workdir, multihost.is_lead())) as folder:
        _check_shared(folder)
        check_suites(experiment.train.suites, experiment.model)
        program = make_program(experiment)
        multihost.meet("the start of the run")
        multihost.check_agreement(
            {
                "configuration": gin,
                "model, seed, tokenizer or data": identity(program),
                "version of hyla_lm": [version("hyla_lm"), git_revision()],
            }
        )
        with jax.set_mesh(program.mesh), Notice() as notice:
            state, summary = _Run(program, folder, notice, gin).train()
        params = multihost.on_host(state.params)
        if multihost.is_lead():
            _close(program, params, summary, folder)
    return summary


def _check_shared(folder: RunFolder) -> None:
    """Raises UserError, in every process, unless all see what the first writes."""
    mark = multihost.gather(folder.leave_mark())[0]
    seeing = multihost.gather(folder.sees(mark))
    folder.remove_mark(mark)
    if not all(seeing):
        raise UserError(
            f"process {seeing.index(False)} does not see what process 0 writes to "
            f"--workdir={folder.path}: give a folder that all hosts mount, or one in a bucket."
        )


def _close(program: Program, params: Any, summary: dict[str, Any], folder: RunFolder) -> None:
    for line in program.task.closing_lines(program.model, params, summary["validation"]):
        print(line)
    print(f"curves: tensorboard --logdir {folder.path}")


class _Run:
    """One process's run of a program in a folder."""

    def __init__(self, program: Program, folder: RunFolder, notice: Notice, gin: str):
        self.program, self.folder, self.gin = program, folder, gin
        self.train_config = program.experiment.train
        self.share = multihost.share_of(program.mesh, self.train_config.batch_size)
        self.checkpoints = Checkpointer(folder.checkpoints, program.experiment.checkpoint.keep)
        self.notice = notice
        self.started = time.monotonic()

    def train(self) -> tuple[TrainState, dict[str, Any]]:
        """The last state and the summary, which is on disk."""
        state, data = self._restore_or_init()
        first = int(state.step)
        if multihost.is_lead():
            lines = startup_lines(self.program, state.params, first)
            show_summary(f"hyla_lm {version('hyla_lm')}", lines)
            for line in layout_lines(self.program):
                print(line)
        self.folder.write("config.gin", self.gin)
        self.folder.keep_metrics_until(first, self._due_tags(first, data))
        tensorboard = self.folder.tensorboard if multihost.is_lead() else None
        board = TensorBoard(tensorboard, first or None)
        if first == 0:
            board.text("config", f"```\n{self.gin}\n```")
        with closing(board):
            return self._train(state, data, board)

    def _train(
        self, state: TrainState, data: dict[str, Any], board: TensorBoard
    ) -> tuple[TrainState, dict[str, Any]]:
        first = int(state.step)
        log = StepLog(self.program, self.folder, board, data.get("window", {}))
        with TrainingProgress(self.train_config.steps, first, multihost.is_lead()) as progress:
            if data.get("evaluation_is_due") and not self._evaluate_and_log(
                first, state, log, progress
            ):
                raise Preempted(f"stopped while step {first} was evaluated, which is saved")
            if data.get("suites_are_due") and first < self.train_config.steps:
                with progress.paused():
                    self._run_suites(first, log)
            state = self._loop(state, data.get("streams"), log, progress)
        try:
            validation = self._evaluate(state, final=True)
        except Preempted:
            self.checkpoints.close()
            raise Preempted("stopped in the last evaluation; every step is saved") from None
        suites = self._run_suites(self.train_config.steps, log)
        train_means = log.last_means
        self.checkpoints.close()
        summary = summary_of(
            self.program, state.params, train_means, validation, log.tokens_per_second()
        )
        summary |= {SUITES: suites} if suites else {}
        summary["wall_seconds"] = time.monotonic() - self.started
        self.folder.write_summary(summary)
        return state, summary

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
            due = step == c.steps or step % c.eval_every == 0
            if due:
                log.finish(progress)
            is_evaluated = not due or self._evaluate_and_log(step, state, log, progress)
            suites = suites_due(c.suites, step, c.steps)
            stops = self.notice.came()
            is_last, every = step == c.steps, self.program.experiment.checkpoint.every
            if stops or is_last or suites or step % every == 0:
                log.finish(progress)
                self.folder.mirror()
                streams = multihost.gather_shares(position, self.share)
                due_still = {
                    "evaluation_is_due": not is_evaluated,
                    "suites_are_due": bool(suites),
                }
                self._save(step, state, {"streams": streams, "window": log.window, **due_still})
            self.checkpoints.check()
            self.folder.check()
            if stops:
                stream.close()
                self.checkpoints.close()
                raise Preempted(f"stopped after step {step}, which is saved")
            if suites and not is_last:
                try:
                    with progress.paused():
                        self._run_suites(step, log)
                except Preempted:
                    stream.close()
                    raise
        log.finish(progress)
        stream.close()
        return state

    def _due_tags(self, first: int, data: Mapping[str, Any]) -> list[str]:
        """The kinds of lines of the first step that will be written again."""
        c = self.train_config
        suites = suites_due(c.suites, first, c.steps)
        is_suites_due = suites and (data.get("suites_are_due") or first == c.steps)
        evaluation = ["validation/"] if data.get("evaluation_is_due") else []
        return [*evaluation, f"{SUITES}/"] if is_suites_due else evaluation

    def _run_suites(self, step: int, log: StepLog) -> dict[str, dict[str, float]]:
        """Figures of the suites that are due, on disk; raises Preempted with everything saved."""
        c = self.train_config
        suites = suites_due(c.suites, step, c.steps)
        if not suites:
            return {}
        self.checkpoints.wait()
        try:
            model = self.program.experiment.model
            figures = run_suites(suites, model, self.folder.path, step / c.steps, self.notice)
        except Preempted as stop:
            self.checkpoints.close()
            raise Preempted(f"{stop}; of this run step {step} is saved") from None
        log.write(step, tags(figures))
        log.restart_clock()
        return figures

    def _save(self, step: int, state: TrainState, data: Mapping[str, Any]) -> None:
        self.checkpoints.save(step, state, data, meta_of(self.program, self.gin))

    def _evaluate_and_log(
        self, step: int, state: TrainState, log: StepLog, progress: TrainingProgress
    ) -> bool:
        """Whether the evaluation came to its end before a notice to stop."""
        try:
            values = self._evaluate(state, final=False)
        except Preempted:
            return False
        log.write(step, {f"validation/{name}": value for name, value in values.items()})
        progress.say(f"step {step}  validation {self.program.task.describe(values)}")
        log.restart_clock()
        return True

    def _evaluate(self, state: TrainState, final: bool) -> dict[str, float]:
        p, batch_size = self.program, self.train_config.batch_size
        sets = p.task.evaluation_sets(batch_size, self.share, final)
        return evaluate_sets(p.task, p.evaluation_step, state.params, sets, p.place, self.notice)
