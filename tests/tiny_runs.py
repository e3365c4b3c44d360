"""Tiny runs: trained here, or by a process that is sent a signal somewhere."""

import shutil
import signal
import sys
from pathlib import Path

from hyla_lm.cli.main import main
from hyla_lm.ending import STOPPED
from hyla_lm.input.prepared import Rows
from tests import preloaded
from tests.conftest import SEQUENCE_LENGTH, TINY

# A trainer that sends itself a signal in the middle of something.
KILLER = """
import os, sys, time
from hyla_lm.checkpoint.checkpoint import Checkpointer
from hyla_lm.cli.main import main
from hyla_lm.logs.step_log import StepLog
from hyla_lm.run.store import RunStore
from hyla_lm.signals import signals

where, number, arguments = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
calls = 0

def kill():
    os.kill(os.getpid(), number)
    while not signals().is_interrupted:  # a thread answers, which must not decide the last step
        time.sleep(0.001)

def kill_at(call, function):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == call and where != "saving":
            kill()
        result = function(*args, **kwargs)
        if calls == call:
            kill()
        return result
    return wrapped

if where == "training":
    StepLog.record = kill_at(8, StepLog.record)
elif where == "opening":
    RunStore.begin = kill_at(1, RunStore.begin)
elif where == "saving":
    Checkpointer.save = kill_at(2, Checkpointer.save)
sys.exit(main(arguments))
"""


def write_gin(home: Path, rows: Rows, more: str = "") -> Path:
    """The gin file of a run of 12 steps, with more bindings at its end."""
    home.mkdir(exist_ok=True)
    path = home / "tiny.gin"
    path.write_text(TINY.format(rows=rows, sequence_length=SEQUENCE_LENGTH) + more)
    return path


def copied(rows: Rows, home: Path) -> Rows:
    """A copy of the rows to damage."""
    shutil.copytree(Path(rows.train).parent, home)
    return Rows(str(home / "train"), str(home / "validation"), str(home / "tokenizer.model"))


def arguments(gin_file: Path, workdir: Path | str, *more: str) -> list[str]:
    """A command line, with bindings and flags."""
    given = [one if one.startswith("--") else f"--gin.{one}" for one in more]
    return ["train", f"--gin_file={gin_file}", f"--workdir={workdir}", *given]


def train(gin_file: Path, workdir: Path | str, *more: str) -> int:
    """The status of a run in this process, with bindings and flags."""
    return main(arguments(gin_file, workdir, *more))


def train_process(
    gin_file: Path, workdir: Path, where: str = "never", number: int = signal.SIGKILL
) -> int:
    """The status of a run in another process, which is sent the signal somewhere."""
    command = [sys.executable, "-c", KILLER, where, str(int(number)), *arguments(gin_file, workdir)]
    done = preloaded.run(command, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL, STOPPED), done.stderr
    lines = done.stderr.splitlines()
    foreign = [line for line in lines if "INFO:hyla_lm.input.manifest" not in line]
    assert done.returncode != 0 or not foreign, "a run that goes well says nothing on stderr"
    return done.returncode


def saved_steps(workdir: Path) -> list[int]:
    names = (path.name for path in (workdir / "checkpoints").iterdir())
    return sorted(int(name) for name in names if name.isdigit())
