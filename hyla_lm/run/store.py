"""What a run writes, whoever trains it: checkpoints, lines with their curves, its summary."""

import json
import logging
from ast import literal_eval
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from hyla_lm.checkpoint.checkpoint import ORIGIN, Checkpointer, restore_run
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.gin_files import read_settings, value_of
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import TOKENIZER
from hyla_lm.logs.sinks import LoggedRun, Sink, Value
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.optim import OptimizerConfig, make_schedule
from hyla_lm.parallel import processes
from hyla_lm.run.folder import EVENTS, HOME, SUMMARY, RunFolder, read_object, read_summary
from hyla_lm.run.program import Program, identity, meta_of
from hyla_lm.run.summary import LEARNING_RATE
from hyla_lm.storage import exists, read_whole
from hyla_lm.tasks.language_model import LanguageModelTask
from hyla_lm.tasks.protocol import Task
from hyla_lm.train_step import TrainState

SAVED = ".saved"  # the newest step that was saved whole: a later loss of all is noticed
LOGGED = "logged_bytes"  # in the meta of a checkpoint, of the lines that a resumed run keeps

log = logging.getLogger(__name__)


class RunStore:
    """One run's folder while it is trained: `restore`, then `begin`, then write and save.

    All processes save; only process 0 writes the rest. `origin` says which run this one began from,
    if it did (hyla_lm.checkpoint.beginning); each checkpoint has it.
    """

    def __init__(self, program: Program[Task], folder: RunFolder):
        self.folder, self._program = folder, program
        self.origin: dict[str, Any] | None = None
        self._meta: dict[str, Any] = {}
        # The step of the last line, and the bytes of lines that no due action of it writes again.
        self._step, self._stay = 0, 0
        self._sinks: list[Sink] = []
        keep = program.experiment.checkpoint.keep
        self.checkpoints = Checkpointer(folder.checkpoints, keep)
        self._stack = ExitStack()
        self._stack.callback(self.checkpoints.close)
        self._saved = self._noted = max(self.checkpoints.steps(), default=None)

    def check_nothing_saved(self) -> None:
        """Raises UserError if the run has saved checkpoints that are no longer there."""
        if step := read_object(self.folder.path / SAVED).get("step"):
            raise UserError(
                f"{self.folder.path} has saved step {step} but holds no checkpoint: "
                f"put its checkpoints back, give another --workdir, or delete {SAVED} there to "
                "train it anew."
            )

    def restore(self, step: int) -> tuple[TrainState, dict[str, Any]]:
        """State and data position of a step.

        Raises UserError for a checkpoint of another run, and Damaged for one that is not as it was
        saved.
        """
        program = self._program
        state, data, self._meta = restore_run(
            self.checkpoints, step, identity(program), program.abstract_state
        )
        self.origin = self._meta.get(ORIGIN)
        return state, data

    def other_numerics(self) -> str:
        """How the program's numerics differ from those that saved what was restored."""
        now, then = meta_of(self._program), self._meta
        return ", ".join(
            f"{name} {then[part].get(name)!r} became {value!r}"
            for part in ("numerics", "versions")
            for name, value in now[part].items()
            if then[part].get(name) != value
        )

    def other_settings(self, step: int) -> list[str]:
        """A line for each setting that differs from those that saved what was restored.

        Another one says what that does to the learning rate of the update after this step.
        """
        texts = self._meta["gin"], self._program.experiment.text
        then, now = (read_settings(text, "config.gin") for text in texts)
        values = {name: (value_of(then, name), value_of(now, name)) for name in {**then, **now}}
        lines = [f"{name} {old} became {new}" for name, (old, new) in values.items() if old != new]
        rates = [f"{_learning_rate(settings, step):.3g}" for settings in (then, now)]
        if rates[0] != rates[1]:
            lines.append("the learning rate of the next update {} became {}".format(*rates))
        return lines

    def begin(self, first: int, redone: Sequence[str]) -> None:
        """Begins to write from a step on; lines after it go, and its own of tags that are redone.

        Checkpoints of later steps are moved to a folder of their own. A tag is redone that begins
        with one of `redone`, such as "validation/". It warns of lines and curves that are gone.
        """
        program = self._program
        self._move_checkpoints_after(first)
        self.folder.write("config.gin", program.experiment.text)
        self.folder.write(HOME, json.dumps({"folder": str(Path.cwd())}) + "\n")
        if isinstance(program.task, LanguageModelTask):
            self.folder.write(TOKENIZER, program.task.tokenizer.content)
        names = self.folder.names  # without config.gin where only a checkpoint was copied
        is_resumed = first > 0 and "config.gin" in names
        logged = self._meta.get(LOGGED, 0) if is_resumed else 0
        lines = self.folder.keep_lines_until(first, redone, logged)
        self._step, self._stay = first, self.folder.logged
        if processes.is_process_0():
            if is_resumed and not any(name.startswith(EVENTS) for name in names):
                log.warning("%s has lost its curves until step %d", self.folder.path, first)
            self._add_sink(TensorBoard(self.folder.logs, first))
            run = LoggedRun(self.folder.path, first)
            for config in program.experiment.log.sinks:
                self._add_sink(config.open_sink(run))
        for line in lines:
            if (step := line.pop("step")) == first:
                self.show(step, line)

    def _move_checkpoints_after(self, step: int) -> None:
        later = [saved for saved in self.checkpoints.steps() if saved > step]
        if later and processes.is_process_0():
            self.folder.move_checkpoints(later)
        processes.barrier("the move of later checkpoints")
        self.checkpoints.reload()
        self._saved = self._noted = max(self.checkpoints.steps(), default=None)

    def _add_sink(self, sink: Sink) -> None:
        self._sinks.append(sink)
        self._stack.callback(sink.close)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """A line and its curves, on disk when this returns."""
        if step > self._step:
            self._step, self._stay = step, self.folder.logged
        self.folder.append_line(step, values)
        if LEARNING_RATE in values:
            self._stay = self.folder.logged
        self.show(step, values)

    def show(self, step: int, values: Mapping[str, Value]) -> None:
        """Writes only to the sinks: pictures and texts have no line."""
        for sink in self._sinks:
            sink.write(step, values)

    def is_saved(self, step: int) -> bool:
        """Whether the newest checkpoint, or the save under way, is of this step."""
        return step == self._saved

    def save(self, step: int, state: TrainState, data: Mapping[str, Any]) -> None:
        """Starts saving a step in the background, once the bucket has the logs up to it."""
        self.folder.mirror()
        origin = {ORIGIN: self.origin} if self.origin else {}
        more = {LOGGED: self.folder.logged if step > self._step else self._stay, **origin}
        self.checkpoints.save(step, state, data, {**meta_of(self._program), **more})
        self._saved = step

    def check(self) -> None:
        """Raises what a save or the copying of logs raised in the background."""
        self.checkpoints.check()
        self.folder.check()
        self._note_saved()

    def wait(self) -> None:
        """Waits for saves under way and raises what failed."""
        self.checkpoints.wait()
        self._note_saved()

    def _note_saved(self) -> None:
        if self._saved != self._noted and not self.checkpoints.is_saving():
            self.folder.write(SAVED, json.dumps({"step": self._saved}) + "\n")
            self._noted = self._saved

    def finish(self, trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> dict[str, Any]:
        """Writes summary.json, last: every save before it is whole; returns its content."""
        self.wait()
        origin = {"began_from": self.origin} if self.origin else {}
        summary = {**trained, **evaluated, **origin}
        self.folder.write(SUMMARY, json.dumps(summary, indent=1) + "\n")
        return summary

    def close(self) -> None:
        """Lets a save under way end, raises what failed, and closes the curves."""
        self._stack.close()


def _learning_rate(settings: Mapping[str, str], step: int) -> float:
    """That of the update after a step, by the settings of a run."""
    names = [field.name for field in fields(OptimizerConfig)]
    own = {name: literal_eval(value_of(settings, f"OptimizerConfig.{name}")) for name in names}
    steps = literal_eval(value_of(settings, "TrainConfig.steps"))
    return float(make_schedule(OptimizerConfig(**own), steps)(step))


def finished_summary(folder: RunFolder, experiment: Experiment) -> dict[str, Any]:
    """The summary of a run that is finished with these settings; else empty.

    The summary is written last, so a run that was killed before has none. A folder that was trained
    with other settings, or whose last checkpoint is gone, is treated as any other. All processes
    must call it.
    """
    summary, last = read_summary(folder.path), experiment.train.steps
    is_finished = (
        summary.get("step") == last
        and read_whole(folder.path / "config.gin") == experiment.text.encode()
        and exists(folder.checkpoints / str(last))
    )
    return summary if all(processes.gather(is_finished)) else {}
