"""Launcher jobs of a sweep: a file of options for each run, and the commands that start them."""

import re
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole
from hyla_lm.tools.sweep.runs import Run
from hyla_lm.tpu import launch

LONGEST_NAME = 40
OWN = ("--name=", "--workdir=", "--gin_file=", "--gin.")  # options that each job has for itself
UNSAFE = re.compile(r"[^a-z0-9]+")


def write_jobs(runs: Sequence[Run], options: Sequence[str], name: str, folder: str) -> list[str]:
    """Writes an .args file for each run and returns the command that starts each.

    `options` are the lines of a job that all begin with, `name` is the beginning of their names.
    Raises UserError for options that the launcher would refuse; then nothing is written.
    """
    shared = [line for line in options if not line.startswith(OWN)]
    jobs = {}
    for run in runs:
        lines = [f"--name={job_name(name, run)}", *shared, *run.arguments]
        launch.read_job(["supervise", *lines]).check_run()
        jobs[Path(folder, f"{run.name.replace('/', ',')}.args")] = [f"# {run.name}", *lines]
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, lines in jobs.items():
            write_whole(path, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise UserError(
            f"--emit_jobs={folder} cannot be written ({error.strerror}): give another folder."
        ) from error
    return [f"hyla-lm tpu supervise {shlex.quote(f'@{path}')}" for path in jobs]


def job_name(beginning: str, run: Run) -> str:
    """A name of the launcher for a run: of at most 40 letters, digits and -, the same each time."""
    end = f"-{zlib.crc32(run.point.name.encode()):08x}-s{run.seed}"
    slug = UNSAFE.sub("-", f"{beginning}-{run.point.name}".lower())
    return slug[: LONGEST_NAME - len(end)].rstrip("-") + end
