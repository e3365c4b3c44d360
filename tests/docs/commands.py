"""Commands of pages, run as processes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests import preloaded

ROOT = Path(__file__).parents[2]
# The folder of the command is not in Python's path, as with an installed console script.
HYLA_LM = [sys.executable, "-P", "-m", "hyla_lm"]


def finished(
    command: str, place: Path, *more: str, root: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """A command of hyla-lm or grep that ran in a folder, with the package of a root."""
    name, *arguments = shlex.split(command)
    start, program = {
        "hyla-lm": (preloaded.run, HYLA_LM),
        "grep": (subprocess.run, ["grep"]),
    }[name]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    argv = [*program, *arguments, *more]
    return start(argv, cwd=place, env=environment, capture_output=True, text=True)


def output_of(command: str, place: Path, *more: str, root: Path = ROOT) -> str:
    done = finished(command, place, *more, root=root)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout
