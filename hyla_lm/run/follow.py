"""An evaluator that follows a run: another process, which evaluates each checkpoint as it comes.

It only reads the run's own files. Its lines and curves are in the folder `evaluator` of the run.
"""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import jax
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer, Damaged, check_same_run
from hyla_lm.ending import Preempted
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.run.due_actions import VALIDATION
from hyla_lm.run.evaluation import Evaluation
from hyla_lm.run.folder import EVALUATOR, RunFolder, read_summary
from hyla_lm.run.program import Program, identity
from hyla_lm.run.restored import RestoredRun
from hyla_lm.storage import exists, read_whole
from hyla_lm.tasks.protocol import Task

POLL_SECONDS = 30.0
LONGEST_SLEEP_SECONDS = 0.2
Say = Callable[[str], None]


def follow(workdir: str, prepare: Callable[[], Program[Task]], say: Say = print) -> None:
    """Evaluates each checkpoint of a run on its whole sets, until the run is finished.

    `prepare` makes the program of the run's config.gin, and is called again when that changes.
    Steps that were evaluated before are not evaluated again. Raises Preempted when it is
    interrupted, and UserError where another evaluator follows the run.
    """
    if jax.process_count() > 1:
        raise UserError(
            f"--follow evaluates in one process, and here are {jax.process_count()}: start it on "
            "one host, without JAX_COORDINATOR_ADDRESS."
        )
    run = RunFolder(workdir, writes=False)
    config = run.path / "config.gin"
    with ExitStack() as stack:
        guard = stack.enter_context(PreemptionGuard())
        guard.begin()
        pause = _Pause(guard, say)
        while not (exists(config) and exists(run.checkpoints)):
            pause(f"waits for a run in {workdir}")
        records = stack.enter_context(closing(_Records(run.path)))
        checkpoints = stack.enter_context(closing(Checkpointer(run.checkpoints)))
        damaged: dict[int, str] = {}  # each is read again at the end
        is_last_reading = False
        text, program = None, None
        while True:
            try:
                if (now := read_whole(config)) != text:
                    text, program = now, prepare()
                assert program is not None
                # Read first: checkpoints that come after it are of a run that is not finished.
                summary = read_summary(run.path)
                known = records.steps | damaged.keys()
                new = [step for step in checkpoints.steps() if step not in known]
                if new:
                    evaluation = _evaluated(program, checkpoints, new[0], pause.check)
            except Unavailable as error:
                pause(str(error))
                continue
            except Damaged as damage:  # or the run removed it meanwhile
                damaged[new[0]] = str(damage)
                say(f"step {new[0]} is left out for now: {damage}")
                continue
            if new:
                damaged.pop(new[0], None)
                records.write(evaluation)
                say(f"step {new[0]}  validation {program.task.describe(evaluation.metrics)}")
            elif summary.get("step") != program.experiment.train.steps:
                pause(f"waits for a checkpoint of {workdir}")
            elif damaged and not is_last_reading:
                is_last_reading = True
                damaged.clear()
            else:
                left_out = f", but steps {', '.join(map(str, sorted(damaged)))}" if damaged else ""
                say(f"{run.path} is finished at step {summary['step']:,}, and evaluated{left_out}")
                return


def _evaluated(
    program: Program[Task],
    checkpoints: Checkpointer,
    step: int,
    before_batch: Callable[[], None],
) -> Evaluation:
    """Evaluates a step on whole sets; raises Damaged for one that cannot be read."""
    meta = checkpoints.meta(step)
    check_same_run(meta["identity"], identity(program), checkpoints.folder.parent)
    params = checkpoints.restore_parameters(step, program.abstract_state.params, meta)
    return RestoredRun(program, params, step).evaluation(before_batch)


class _Records:
    """The lines and curves of the evaluator of a run; raises UserError if another one writes."""

    def __init__(self, run: epath.Path):
        self._folder = RunFolder(str(run / EVALUATOR))
        self._folder.keep_lines_until(sys.maxsize)
        self.steps: set[int] = set()
        self._board = TensorBoard(self._folder.logs, 0)
        # Again, since a kill may have lost points of lines that are there.
        for line in self._folder.lines():
            self.steps.add(step := line.pop("step"))
            self._board.write(step, line)

    def write(self, evaluation: Evaluation) -> None:
        """Losses of documents, a line and its points, stored when this returns."""
        evaluation.write_documents(self._folder)
        step = evaluation.step
        values = {f"{VALIDATION}/{name}": value for name, value in evaluation.metrics.items()}
        self._folder.append_line(step, values)
        self._board.write(step, values)
        self._folder.mirror()
        self.steps.add(step)

    def close(self) -> None:
        self._board.close()
        self._folder.close()


class _Pause:
    """Sleeps between two looks at the folder, and says once what is waited for."""

    def __init__(self, guard: PreemptionGuard, say: Say):
        self._guard, self._say, self._said = guard, say, ""

    def check(self) -> None:
        """Raises Preempted when the process is interrupted."""
        if self._guard.requested():
            raise Preempted("stopped")

    def __call__(self, waits_for: str) -> None:
        if waits_for != self._said:
            self._said = waits_for
            self._say(waits_for)
        end = time.monotonic() + POLL_SECONDS
        while (left := end - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, LONGEST_SLEEP_SECONDS))
