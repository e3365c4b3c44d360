"""An evaluator that follows a run: another process, which evaluates each checkpoint as it comes.

It only reads the run's own files. Its lines and curves are in the folder `evaluator` of the run.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import jax
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer, Damaged, check_same_run
from hyla_lm.ending import Preempted
from hyla_lm.errors import UserError
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.parallel import multihost
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.document_losses import DocumentLosses, Recorder, path_of
from hyla_lm.run.duties import VALIDATION
from hyla_lm.run.evaluation import evaluate_sets
from hyla_lm.run.program import Program, identity
from hyla_lm.run.run_folder import EVALUATOR, RunFolder
from hyla_lm.storage import read_whole
from hyla_lm.tasks.protocol import Task

LONGEST_SLEEP_SECONDS = 0.2
Prepare = Callable[[], Program[Task]]
Say = Callable[[str], None]


def follow(workdir: str, prepare: Prepare, poll_seconds: float, say: Say = print) -> None:
    """Evaluates each checkpoint of a run on its whole sets, until the run is finished.

    `prepare` makes the program of the run's config.gin, and is called again when that changes.
    Steps that were evaluated before are not evaluated again. Raises Preempted when it is asked to
    stop, and UserError where another evaluator follows the run.
    """
    if jax.process_count() > 1:
        raise UserError(
            f"--follow evaluates in one process, and here are {jax.process_count()}: start it on "
            "one host, without JAX_COORDINATOR_ADDRESS."
        )
    run = RunFolder(workdir, lead=False)
    with ExitStack() as stack:
        guard = stack.enter_context(PreemptionGuard())
        guard.begin()
        pause = _Pause(poll_seconds, guard, say)
        while not ((run.path / "config.gin").exists() and run.checkpoints.exists()):
            pause(f"waits for a run in {workdir}")
        records = stack.enter_context(closing(_Records(run.path)))
        checkpoints = stack.enter_context(closing(Checkpointer(run.checkpoints, keep=None)))
        follower = _Follower(run, prepare, checkpoints, records, guard, say)
        try:
            while not follower.is_done():
                if not follower.evaluate_next():
                    pause(f"waits for a checkpoint of {workdir} after {records.newest}")
        except Preempted:
            raise Preempted(f"stopped; evaluated until {records.newest}") from None


class _Follower:
    """What is evaluated next, by what the run's folder holds."""

    def __init__(
        self,
        run: RunFolder,
        prepare: Prepare,
        checkpoints: Checkpointer,
        records: "_Records",
        guard: PreemptionGuard,
        say: Say,
    ):
        self._run, self._prepare, self._checkpoints = run, prepare, checkpoints
        self._records, self._guard, self._say = records, guard, say
        self._skipped: set[int] = set()
        self._text: bytes | None = None
        self._look_at_config()

    def is_done(self) -> bool:
        """Whether the run is finished, and all that it has is evaluated."""
        self._look_at_config()
        last = self._program.experiment.train.steps
        if self._run.read_summary().get("step") != last or self._new_steps():
            return False
        self._say(f"{self._run.path} is finished at step {last:,}, and evaluated")
        return True

    def evaluate_next(self) -> bool:
        """Evaluates the earliest new checkpoint; False if there is none."""
        steps = self._new_steps()
        if not steps:
            return False
        try:
            params = self._parameters(steps[0])
        except Damaged as damage:
            self._skip(steps[0], damage)
            return True
        p = self._program
        shard = multihost.shard_of(p.mesh, p.experiment.train.batch_size)
        with jax.set_mesh(p.mesh):
            recorder = Recorder(p, shard)
            sets = recorder.watched(p.task.evaluation_sets(shard, final=True))
            found = evaluate_sets(p.task, recorder.step, params, sets, p.place, guard=self._guard)
        self._records.keep_documents(recorder.losses(steps[0]))
        self._records.write(
            steps[0], {f"{VALIDATION}/{name}": value for name, value in found.items()}
        )
        self._say(f"step {steps[0]}  validation {p.task.describe(found)}")
        return True

    def _look_at_config(self) -> None:
        text = read_whole(self._run.path / "config.gin")
        if text != self._text:
            self._text, self._program = text, self._prepare()

    def _new_steps(self) -> list[int]:
        self._checkpoints.reload()
        known = self._records.steps | self._skipped
        return [step for step in self._checkpoints.steps() if step not in known]

    def _parameters(self, step: int) -> Any:
        meta = self._checkpoints.meta(step)
        check_same_run(meta["identity"], identity(self._program), self._run.path)
        wanted = self._program.abstract_state.params
        return self._checkpoints.restore_parameters(step, wanted, meta)

    def _skip(self, step: int, damage: Damaged) -> None:
        self._skipped.add(step)
        gone = f"step {step} was deleted before it was read (CheckpointConfig.keep): skipped"
        is_there = (self._run.checkpoints / str(step)).exists()
        self._say(f"{damage}: step {step} is skipped" if is_there else gone)


class _Records:
    """The lines and curves of the evaluator of a run; raises UserError if another one writes."""

    def __init__(self, run: epath.Path):
        self._folder = RunFolder(str(run / EVALUATOR))
        lines = self._folder.keep_lines_until(sys.maxsize)
        self.steps = {line["step"] for line in lines}
        # A kill may have kept the points of the last line from being written: they are again.
        last = lines[-1]["step"] if lines else 0
        self._board = TensorBoard(self._folder.logs, last)
        for line in lines:
            if (step := line.pop("step")) >= last:
                self._board.write(step, line)

    @property
    def newest(self) -> str:
        return f"step {max(self.steps)}" if self.steps else "its start"

    def keep_documents(self, losses: DocumentLosses | None) -> None:
        if losses is not None:
            self._folder.write(path_of(losses.step), losses.to_bytes())

    def write(self, step: int, values: dict[str, float]) -> None:
        """A step's line and points, kept when this returns."""
        self._folder.append_line(step, values)
        self._board.write(step, values)
        self._folder.mirror()
        self.steps.add(step)

    def close(self) -> None:
        self._board.close()
        self._folder.close()


class _Pause:
    """Sleeps between two looks, and says once what is waited for."""

    def __init__(self, seconds: float, guard: PreemptionGuard, say: Say):
        self._seconds, self._guard, self._say = seconds, guard, say
        self._said = ""

    def __call__(self, waits_for: str) -> None:
        """Raises Preempted when a stop is asked for."""
        if waits_for != self._said:
            self._said = waits_for
            self._say(f"{waits_for}, and looks every {self._seconds:g} s")
        end = time.monotonic() + self._seconds
        while (left := end - time.monotonic()) > 0:
            if self._guard.requested():
                raise Preempted("stopped")
            time.sleep(min(left, LONGEST_SLEEP_SECONDS))
