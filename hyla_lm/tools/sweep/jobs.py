"""Launcher jobs of a sweep: a file of options for each run, and the commands that start them."""

import re
import shlex
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from hyla_lm.errors import UserError
from hyla_lm.storage import write_retrying
from hyla_lm.tools.sweep.runs import Run

LONGEST_NAME = 40
OWN = ("--name=", "--workdir=", "--gin_file=", "--gin.")  # what each job has of its own
UNSAFE = re.compile(r"[^a-z0-9]+")


def write_jobs(
    runs: Sequence[Run],
    options: Sequence[str],
    name: str,
    folder: str,
    check: Callable[[list[str]], None],
) -> list[str]:
    """Writes an .args file for each run and returns the command that starts each.

    `options` are the lines of a job that all begin with, `name` is the beginning of their names.
    `check` raises UserError for options that the launcher would refuse; then nothing is written.
    """
    jobs = {Path(folder, f"{file_of(run)}.args"): _lines(run, options, name) for run in runs}
    for lines in jobs.values():
        check([line for line in lines if not line.startswith("#")])
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        for path, lines in jobs.items():
            write_retrying(path, "".join(f"{line}\n" for line in lines).encode())
    except OSError as error:
        raise UserError(
            f"--emit_jobs={folder} cannot be written ({error.strerror}): give another folder."
        ) from error
    return [f"hyla-lm tpu supervise {shlex.quote(f'@{path}')}" for path in jobs]


def file_of(run: Run) -> str:
    return run.name.replace("/", ",")


def job_name(beginning: str, run: Run) -> str:
    """A name of the launcher for a run: of at most 40 letters, digits and -, the same each time."""
    end = f"-{zlib.crc32(run.point.name.encode()):08x}-s{run.seed}"
    slug = UNSAFE.sub("-", f"{beginning}-{run.point.name}".lower())
    return slug[: LONGEST_NAME - len(end)].rstrip("-") + end


def _lines(run: Run, options: Sequence[str], name: str) -> list[str]:
    shared = [line for line in options if not line.startswith(OWN)]
    return [f"# {run.name}", f"--name={job_name(name, run)}", *shared, *run.arguments]
