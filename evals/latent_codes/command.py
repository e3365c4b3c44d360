"""Looks inside the latent codes of trained runs: hyla-lm evals latent_codes PATH.

PATH is one run of fuzzy logic or SRAVEN, or the --workdir of an experiment, of which every finished
run is looked at. It decodes terms and rules from codes of held-out tasks and draws a picture of the
codes. Both land in latent_codes/ of each run, the metrics of an experiment in latent_codes/ and
report.md beside its results.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.evals.latent_codes.samples import Choices
from hyla_lm.evals.latent_codes.table import FOLDER, OF_TABLE, Decoded
from hyla_lm.evals.tables import write_json
from hyla_lm.package import install

HELP = "look inside the latent codes of a run, or of all finished runs of an experiment"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", type=Path, help="folder of a run with checkpoints, or of runs and their results")
    add("--examples", type=count, default=4096, help="examples a set")
    add("--seed", type=int, default=0, help="seed of the examples and of tSNE")
    add(
        "--fixed",
        choices=("nothing", "context", "query"),
        default="nothing",
        help="fuzzy logic: inputs that are the same in all examples",
    )


def count(text: str) -> int:
    """A whole number above 0, as an argument's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return int(text)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    """Looks at one run and prints a table, or at all runs and writes the report."""
    if find_spec("sklearn") is None:
        raise UserError(f"latent codes need scikit-learn: {install('evals')}.")
    from hyla_lm.evals.experiments.report import write_report
    from hyla_lm.evals.latent_codes.report import lines

    path: Path = options.path
    choices = Choices(options.examples, options.seed, options.fixed)
    if (path / "results").is_dir():
        look_at_all(path, choices, options.command, bindings)
        write_report(path)
        print(path / "report.md")
        return
    for line in lines(look_at(path, choices, bindings)):
        print(line)
    print(f"report, codes and picture: {path / FOLDER}")


def look_at_all(folder: Path, choices: Choices, command: str, bindings: Sequence[str]) -> None:
    """Looks at every run that has a result, unless it was looked at with these choices before.

    Runs that diverged are left out.
    """
    from hyla_lm.evals.experiments import results

    for result in results.read(folder / "results"):
        if result.summary.get("diverged_at") is not None:
            continue
        decoded = Decoded(result.name, asdict(choices), command, {})
        path = folder / FOLDER / f"{decoded.name}.json"
        if path.is_file() and json.loads(path.read_text())["choices"] == decoded.choices:
            continue
        print(path.stem, flush=True)
        report = look_at(folder / result.folder, choices, bindings)
        found = {name: report[name] for name in OF_TABLE}
        write_json(path, {**asdict(decoded), "found": found}, digits=6)


def look_at(workdir: Path, choices: Choices, bindings: Sequence[str]) -> dict[str, Any]:
    """The report of a run's newest checkpoint, which is written to latent_codes/ of the run."""
    from hyla_lm.evals.latent_codes.report import report
    from hyla_lm.parallel.mesh import all_devices
    from hyla_lm.run.restored import open_run

    run, out = open_run(str(workdir), None, (), bindings, all_devices()[:1]), workdir / FOLDER
    found = {"workdir": str(workdir), "step": run.step, **report(run, choices, out)}
    write_json(out / "report.json", found)
    return found
