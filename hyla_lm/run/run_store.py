"""What a run keeps, beneath every trainer: checkpoints, metric lines with their curves, summary."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from hyla_lm.checkpoint.checkpoint import (
    ORIGIN,
    OTHER_WORKDIR,
    Checkpointer,
    check_same_run,
    differences,
)
from hyla_lm.checkpoint.saved_files import told_of_changes
from hyla_lm.config.experiment import Branch
from hyla_lm.errors import UserError
from hyla_lm.logs.sinks import LoggedRun, Sink, Value
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.parallel import multihost
from hyla_lm.run import document_losses
from hyla_lm.run.document_losses import DocumentLosses
from hyla_lm.run.introduction import settings_of, texts
from hyla_lm.run.program import Program, identity, meta_of
from hyla_lm.run.run_folder import RunFolder
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import TrainState

LONGEST_SHOWN = 60
log = logging.getLogger(__name__)


class RunStore:
    """One run's folder while it is trained: `restore`, then `begin`, then write and save.

    All processes save; only the lead process writes the rest. `origin` tells of the run that this
    one began from, if it did (hyla_lm.checkpoint.beginning); each checkpoint has it.
    """

    def __init__(self, program: Program[Task], folder: RunFolder):
        self.folder, self._program = folder, program
        self.origin: dict[str, Any] | None = None
        self._sinks: list[Sink] = []
        self._checkpoints = Checkpointer(folder.checkpoints, program.experiment.checkpoint.keep)
        self._stack = ExitStack()
        self._stack.callback(self._checkpoints.close)
        self._saved = self._noted = self._checkpoints.latest_step()

    @property
    def begun_at(self) -> int:
        """The step at which the run began: that of its trunk for a branch, else 0."""
        if self.origin is None or self.origin["settings"]["class"] != Branch.__name__:
            return 0
        return self.origin["step"]

    def saved_steps(self) -> list[int]:
        """Every step with a whole checkpoint."""
        return self._checkpoints.steps()

    def choose(self, step: int | None) -> int:
        """The step, or the newest; raises UserError for one that is not saved."""
        return self._checkpoints.choose(step)

    def is_saved(self, step: int) -> bool:
        """Whether the newest checkpoint, or the save under way, is of this step."""
        return step == self._saved

    def restore(self, step: int) -> tuple[TrainState, dict[str, Any]]:
        """State and data position of a step.

        Raises UserError for a checkpoint of another run, and Damaged for one that is not as it was
        saved.
        """
        state, data = self._restored(self._checkpoints, step, OTHER_WORKDIR)
        self.origin = self._meta.get(ORIGIN)
        return state, data

    def branch(self, trunk: Checkpointer, step: int) -> tuple[TrainState, dict[str, Any]]:
        """`restore` of a run that this one branches from; `origin` is the caller's to set."""
        return self._restored(trunk, step, "correct that setting or give another Branch.run")

    def _restored(
        self, checkpoints: Checkpointer, step: int, remedy: str
    ) -> tuple[TrainState, dict[str, Any]]:
        workdir = checkpoints.folder.parent
        self._meta = checkpoints.meta(step)
        check_same_run(self._meta["identity"], identity(self._program), workdir, remedy)
        state, data = checkpoints.restore(step, self._program.abstract_state, self._meta)
        data["window"].pop("objective", None)  # which older checkpoints kept there
        if multihost.is_lead() and (changes := told_of_changes(workdir, step)):
            log.warning(changes)
        return state, data

    def other_numerics(self, program: Program[Task]) -> str:
        """How the program's numerics differ from those that saved what was restored."""
        now, then = meta_of(program), self._meta
        found = [
            f"{name.partition('.')[2]} {_change(str(before), str(after))}"
            for name, after, before in differences(_numerics(now), _numerics(then))
            if "numerics" in then
        ]
        return ", ".join(found)

    def set_aside_after(self, step: int) -> None:
        """Moves the checkpoints of later steps, and a copy of the lines, to `set_aside`."""
        if multihost.is_lead():
            self.folder.set_aside([later for later in self.saved_steps() if later > step])
        multihost.barrier("the setting aside of checkpoints")
        self._checkpoints.reload()

    def begin(self, program: Program[Task], first: int, redone: Sequence[str]) -> None:
        """Begins to write from a step on; lines after it go, and its own of tags that are redone.

        A tag is redone that begins with one of `redone`, such as "validation/". The program is the
        one that trains, whose compiled step checkpoints name.
        """
        self._program, self._first = program, first
        self.folder.write("config.gin", program.experiment.text)
        self._checkpoints.drop_after(first)
        self._saved = self._noted = self._checkpoints.latest_step()
        kept = self.folder.keep_lines_until(first, redone)
        if multihost.is_lead():
            run = LoggedRun(self.folder.path, first, settings_of(program))
            self._add_sink(TensorBoard(self.folder.logs, first, run.settings))
            for config in program.experiment.log.sinks:
                self._add_sink(config.open_sink(run))
            self.show(first, texts(program))
        for line in kept:
            if line["step"] == first:
                self.show(line.pop("step"), line)

    def _add_sink(self, sink: Sink) -> None:
        self._sinks.append(sink)
        self._stack.callback(sink.close)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A line and its curves, on disk when this returns."""
        self.folder.append_line(step, values)
        self.show(step, values)

    def show(self, step: int, values: Mapping[str, Value]) -> None:
        """Writes to the sinks alone: histograms, pictures and texts have no line."""
        for sink in self._sinks:
            sink.write(step, values)

    def keep_documents(self, losses: DocumentLosses | None) -> None:
        """Writes the losses of an evaluation by document, whole or not at all, if there are any."""
        if losses is not None and multihost.is_lead():
            self.folder.write(document_losses.path_of(losses.step), losses.to_bytes())

    def save(self, step: int, state: TrainState, data: Mapping[str, Any]) -> None:
        """Starts saving a step in the background, once the logs up to it are kept."""
        self.folder.mirror()
        origin = {ORIGIN: self.origin} if self.origin else {}
        self._checkpoints.save(step, state, data, {**meta_of(self._program), **origin})
        self._saved = step

    def check_nothing_saved(self) -> None:
        """Raises UserError if the run has saved checkpoints that are no longer there."""
        if step := self.folder.saved_step():
            raise UserError(
                f"{self.folder.path} has saved step {step} but holds no checkpoint: "
                "put its checkpoints back or give another --workdir."
            )

    def check(self) -> None:
        """Raises what a save or the copying of logs raised in the background."""
        self._checkpoints.check()
        self.folder.check()
        self._note_saved()

    def wait(self) -> None:
        """Waits for saves under way and raises what failed."""
        self._checkpoints.wait()
        self._note_saved()

    def _note_saved(self) -> None:
        """Notes that a save has ended, so that a later loss of all checkpoints is noticed."""
        if self._saved != self._noted and not self._checkpoints.is_saving():
            self.folder.note_saved(self._saved or 0, self.saved_steps())
            self._noted = self._saved

    def finish(self, trained: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Writes summary.json, last: every save before it is whole; returns its content.

        Of a finished run that began again nothing was trained, so only what was found can change.
        """
        self.wait()
        origin = {"began_from": self.origin} if self.origin else {}
        summary, before = {**trained, **found, **origin}, self.folder.read_summary()
        if self._first == trained["step"] == before.get("step"):
            summary |= {name: before[name] for name in trained if name in before}
        self.folder.write_summary(summary)
        return summary

    def close(self) -> None:
        """Lets a save under way end, raises what failed, and closes the curves."""
        self._stack.close()


def _numerics(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {name: meta.get(name, {}) for name in ("numerics", "versions")}


def _change(before: str, after: str) -> str:
    """What became what: of flags and other lists, only the words that the other side lacks."""
    gone = " ".join(word for word in before.split() if word not in after.split())
    new = " ".join(word for word in after.split() if word not in before.split())
    told = (gone, new) if gone or new else (before, after)
    return " became ".join(f"{side or 'nothing':.{LONGEST_SHOWN}}" for side in told)
