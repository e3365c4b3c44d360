"""A process's part of a run while it trains: what is open, and what is due between its steps."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import cached_property
from importlib.metadata import version
from typing import Any, NamedTuple

import jax

from hyla_lm.checkpoint.beginning import begin
from hyla_lm.config.experiment import Experiment
from hyla_lm.diagnostics.attention import LayerDiagnostics, make_diagnostics
from hyla_lm.logs.console import Console
from hyla_lm.logs.step_log import RunClock, StepLog
from hyla_lm.package import git_revision
from hyla_lm.parallel import processes
from hyla_lm.parallel.preemption import PreemptionGuard
from hyla_lm.parallel.sharding import shard_of
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.profiling import Profiler
from hyla_lm.run.program import Program, check_memory, compile_step, identity
from hyla_lm.run.store import RunStore
from hyla_lm.run.summary import startup_lines
from hyla_lm.run.watchdog import Watchdog
from hyla_lm.signals import signals
from hyla_lm.tasks.protocol import Batch, Task


class DueAction(NamedTuple):
    """What is done at steps that follow from the experiment, and how tags that it writes begin.

    If it `waits`, the update before it is logged first, and its time is left out of the speed.
    """

    is_due: Callable[[Experiment, int], bool]
    do: Callable[["Run", int], None]
    tags: tuple[str, ...] = ()
    waits: bool = True


def redone_tags(actions: Sequence[DueAction], experiment: Experiment, step: int) -> tuple[str, ...]:
    """How the tags begin that a run writes again when it resumes from this step."""
    return tuple(
        tag for action in actions if action.is_due(experiment, step) for tag in action.tags
    )


class Run:
    """All that is open while a program trains; a context manager, which closes it on every way out.

    The constructor makes every check, restores the checkpoint of a step, of the newest or none,
    compiles the train step and begins to write. Training goes from step `first` to `last`; `state`
    is the newest. Due actions leave their results: `validation` and `suites` are the metrics of
    their last evaluation, `summary` the content of summary.json. `began` is the time at which the
    process began.
    """

    def __init__(
        self,
        program: Program[Task],
        folder: RunFolder,
        watchdog: Watchdog,
        due_actions: Sequence[DueAction],
        step: int | None = None,
        began: float | None = None,
    ):
        experiment = program.experiment
        self.experiment, self.folder, self.watchdog = experiment, folder, watchdog
        self.due_actions, self.last = due_actions, experiment.train.steps
        self.began = time.monotonic() if began is None else began
        self.validation: dict[str, float] = {}
        self.suites: dict[str, dict[str, float]] = {}
        self.summary: dict[str, Any] = {}
        with ExitStack() as stack:
            with watchdog.paused():  # a barrier has a time limit, and names the missing process
                _check_agreement(program)
            check_memory(program)
            stack.enter_context(jax.set_mesh(program.mesh))
            stop_seconds = experiment.checkpoint.stop_seconds
            self.guard = stack.enter_context(PreemptionGuard(stop_seconds))

            watchdog.waits_for("the start waits for a checkpoint")
            self.store = stack.enter_context(closing(RunStore(program, folder)))
            stack.callback(watchdog.waits_for, "the end of the run waits for a save")
            beginning = begin(program, self.store, step)
            self.state, self.must_be_saved = beginning.state, beginning.must_be_saved
            self.first = int(self.state.step)
            data = beginning.data
            self.clock = RunClock()
            self._print_start(program, beginning.summary)

            if self.first < experiment.train.steps:
                watchdog.waits_for("the start waits for the compiler")
                with self.clock.measured("compile_seconds"):
                    program = compile_step(program)
            self.program = program

            stack.push(signals().end_on_error_within(stop_seconds))
            self.guard.begin()
            self.store.begin(self.first, redone_tags(due_actions, experiment, self.first))
            train = experiment.train
            self.shard = shard_of(program.mesh, train.batch_size, train.seed)
            stream = program.task.train_stream(self.shard, data.get("streams"))
            self.batches = stack.enter_context(closing(stream))
            self.console = console = Console(train.steps, processes.is_process_0())
            window = data.get("window", {})
            self.log = StepLog(program, self.store, console, self.clock, window)
            profiler = Profiler(experiment, folder, self.log, self.clock, console, watchdog)
            self.profiler = stack.enter_context(closing(profiler))
            self._stack = stack.pop_all()

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @cached_property
    def attention_diagnostics(self) -> Callable[[Any, Batch], list[LayerDiagnostics]]:
        """Compiled at the first use."""
        return make_diagnostics(self.program.task, self.program.model, self.program.mesh)

    def next_step(self, step: int) -> int:
        """The step that the train step reaches from this one."""
        return step + 1

    def run_due_actions(self, step: int) -> None:
        """Does what is due at a step, in the order of the table."""
        for action in self.due_actions:
            if not action.is_due(self.experiment, step):
                continue
            if action.waits:
                self.waits_for(step, "the device")
                self.log.flush()
            self.waits_for(step, f"its due action {action.do.__name__!r}")
            action.do(self, step)
            if action.waits:
                self.clock.restart()

    def waits_for(self, step: int, what: str) -> None:
        """Tells the watchdog."""
        self.watchdog.waits_for(f"step {step} waits for {what}")

    def _print_start(self, program: Program[Task], more: dict[str, str]) -> None:
        if processes.is_process_0():
            rows = startup_lines(program, self.state.params, self.first)
            print(f"hyla_lm {version('hyla_lm')}")
            for name, value in {**rows, **more}.items():
                print(f"  {name:12}  {value}")
            if self.first and (other := self.store.other_numerics()):
                print(f"since step {self.first} this changed, so the last bits may differ: {other}")
            for line in self.store.other_settings(self.first) if self.first else ():
                print(f"since step {self.first}: {line}")


def _check_agreement(program: Program[Task]) -> None:
    processes.check_agreement(
        {
            "configuration": program.experiment.text,
            "model, seed, tokenizer or data": identity(program),
            "version of hyla_lm": [version("hyla_lm"), git_revision()],
        }
    )
