"""What a run keeps, beneath every trainer: checkpoints, metric lines with their curves, summary."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hyla_lm.parallel import multihost
from hyla_lm.running.checkpoint import Checkpointer, check_same_run
from hyla_lm.running.program import Program, identity, meta_of
from hyla_lm.running.run_folder import RunFolder
from hyla_lm.running.tensorboard import TensorBoard
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import TrainState


class RunStore:
    """One run's folder while it is trained: `restore`, then `begin`, then write and save.

    All processes save; only the lead process writes the rest.
    """

    def __init__(self, program: Program[Task], folder: RunFolder):
        self.folder, self._program = folder, program
        self._checkpoints = Checkpointer(folder.checkpoints, program.experiment.checkpoint.keep)
        self._stack = ExitStack()
        self._stack.callback(self._checkpoints.close)
        self._saved = self._checkpoints.latest_step()

    def saved_steps(self) -> list[int]:
        """Every step with a whole checkpoint."""
        return self._checkpoints.steps()

    def is_saved(self, step: int) -> bool:
        """Whether the newest checkpoint, or the save under way, is of this step."""
        return step == self._saved

    def restore(self, step: int) -> tuple[TrainState, dict[str, Any]]:
        """State and data position of a step; raises UserError for a checkpoint of another run."""
        saved = self._checkpoints.meta(step)["identity"]
        check_same_run(saved, identity(self._program), self.folder.path)
        state, data = self._checkpoints.restore(step, self._program.abstract_state)
        data.get("window", {}).pop("objective", None)  # which older checkpoints kept there
        return state, data

    def begin(self, first: int, redone: Sequence[str]) -> None:
        """Begins to write from a step on; lines after it go, and its own of tags that are redone.

        A tag is redone that begins with one of `redone`, such as "validation/".
        """
        self._first = first
        text = self._program.experiment.text
        self.folder.write("config.gin", text)
        self._checkpoints.drop_after(first)
        self._saved = self._checkpoints.latest_step()
        kept = self.folder.keep_lines_until(first, redone)
        self._board = TensorBoard(self.folder.tensorboard if multihost.is_lead() else None, first)
        self._stack.callback(self._board.close)
        if first == 0:
            self._board.text("config", f"```\n{text}\n```")
        for line in kept:
            if line.pop("step") == first:
                self._board.scalars(first, line)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A line and its curves, on disk when this returns."""
        self.folder.append_line(step, values)
        self._board.scalars(step, values)

    def save(self, step: int, state: TrainState, data: Mapping[str, Any]) -> None:
        """Starts saving a step in the background, once the logs up to it are kept."""
        self.folder.mirror()
        self._checkpoints.save(step, state, data, meta_of(self._program))
        self._saved = step

    def check(self) -> None:
        """Raises what a save or the copying of logs raised in the background."""
        self._checkpoints.check()
        self.folder.check()

    def wait(self) -> None:
        """Waits for saves under way and raises what failed."""
        self._checkpoints.wait()

    def finish(self, trained: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Writes summary.json, last: every save before it is whole; returns its content.

        Of a finished run that began again nothing was trained, so only what was found can change.
        """
        self.wait()
        summary, before = {**trained, **found}, self.folder.read_summary()
        if self._first == trained["step"] == before.get("step"):
            summary |= {name: before[name] for name in trained if name in before}
        self.folder.write_summary(summary)
        return summary

    def close(self) -> None:
        """Lets a save under way end, raises what failed, and closes the curves."""
        self._stack.close()
