"""The command hyla-lm, whose phases go to a file: python -m tests.faults.phased_train FILE train.

Functions of hyla_lm are wrapped from outside. Every hundredth step of the process its CPU time and
memory go to FILE.steps.
"""

import json
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from tests.faults.phases import CLOSE, COMMIT, COMPILE, EVALUATION, SAVE, START, STEP, PhaseWriter

MEASURED_EVERY = 100
# The phase of a due action, and the phase after it.
ACTION_PHASES = {"evaluate": (EVALUATION, STEP), "write_summary": (CLOSE, CLOSE)}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it
    path = Path(sys.argv[1])
    phases = PhaseWriter(path)
    from hyla_lm.cli import main as cli

    follow_steps(phases, measured_path(path))
    follow_actions(phases)
    follow_saves(phases)
    sys.argv = ["hyla-lm", *sys.argv[2:]]
    cli.entry_point()


def measured_path(phases: Path) -> Path:
    return phases.with_name(f"{phases.name}.steps")


def follow_steps(phases: PhaseWriter, measured: Path) -> None:
    """The compilation, the loop, and what comes after it, which closes the run."""
    from hyla_lm import train as trainer
    from hyla_lm.run import run as opened

    train_steps = trainer.train_steps

    def followed(run: Any) -> None:
        phases.set(STEP)
        step = followed_step(run.program.train_step, run.first, phases, measured)
        run.program = replace(run.program, train_step=step)
        try:
            train_steps(run)
        finally:
            phases.set(CLOSE)

    trainer.train_steps = followed
    opened.compile_step = inside(COMPILE, phases, opened.compile_step, START)


def followed_step(
    train_step: Callable[..., Any], first: int, phases: PhaseWriter, measured: Path
) -> Callable[..., Any]:
    done = 0

    def followed(state: Any, batch: Any) -> Any:
        nonlocal done
        if done and done % MEASURED_EVERY == 0:
            measure(measured, first + done, done)
        phases.set(STEP)
        found = train_step(state, batch)
        done += 1
        return found

    return followed


def measure(path: Path, step: int, done: int) -> None:
    """A line: the run's step, steps since the start, CPU seconds, kilobytes now and at most."""
    sizes = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resident, peak = (int(sizes[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    with path.open("a") as file:
        file.write(json.dumps([step, done, time.process_time(), resident, peak]) + "\n")


def follow_actions(phases: PhaseWriter) -> None:
    from hyla_lm.run import due_actions

    actions = due_actions.DUE_ACTIONS
    gone = sorted(set(ACTION_PHASES) - {action.do.__name__ for action in actions})
    if gone:
        raise SystemExit(
            f"DUE_ACTIONS of hyla_lm.run.due_actions has no {gone[0]}: name its phase."
        )

    def followed(action: Any) -> Any:
        if action.do.__name__ not in ACTION_PHASES:
            return action
        phase, after = ACTION_PHASES[action.do.__name__]
        return action._replace(do=inside(phase, phases, action.do, after))

    due_actions.DUE_ACTIONS = tuple(map(followed, actions))


def follow_saves(phases: PhaseWriter) -> None:
    """A save ends in the background, hence the phase after it is its commit."""
    from hyla_lm.run.store import RunStore

    RunStore.save = inside(SAVE, phases, RunStore.save, COMMIT)


def inside(
    phase: str, phases: PhaseWriter, function: Callable[..., Any], after: str
) -> Callable[..., Any]:
    @wraps(function)
    def followed(*arguments: Any) -> Any:
        phases.set(phase)
        found = function(*arguments)
        phases.set(after)
        return found

    return followed


if __name__ == "__main__":
    main()
