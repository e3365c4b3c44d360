"""Measures what a split costs that never trains some terms.

    python docs/studies/untrained_terms.py --workdir=RUN

Parts the held-out functions of a fuzzy-logic run by how many of their terms no training function
has, and measures R2 on each part. Only some seeds of the published splits leave terms untrained.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask
from hyla_lm.parallel.mesh import all_devices
from hyla_lm.run.restored import RestoredRun, open_run
from hyla_lm.storage import write_whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("untrained_terms", description=__doc__)
    parser.add_argument("--workdir", required=True, help="folder of a run with checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="the JSON to write")
    options = parser.parse_args(argv)
    command = " ".join(["python docs/studies/untrained_terms.py", *argv])
    return ending.run("untrained_terms", lambda: study(options.workdir, options.output, command))


def study(workdir: str, output: Path, command: str) -> None:
    """Writes and prints a JSON."""
    run = open_run(workdir, devices=all_devices()[:1])
    found = {"command": command, **measure(run)}
    write_whole(output, (json.dumps(found, indent=1) + "\n").encode())
    print(output.read_text(), end="")


def measure(run: RestoredRun) -> dict[str, Any]:
    """R2 and number of functions of each part; a part has as many examples as an evaluation set."""
    task = run.program.task
    if not isinstance(task, FuzzyLogicTask):
        raise UserError("--workdir holds no fuzzy-logic run: measure one that is.")
    if not task.missing_terms:
        raise UserError(
            f"--workdir holds a run that trains every term (split {task.config.split}, seed "
            f"{task.config.seed}): there is nothing to part."
        )
    parts = by_untrained(task.tables["held_out"], task.missing_terms)
    sets = {f"{count}_untrained": table_CxK for count, table_CxK in parts.items()}
    parted = replace(task, tables={"train": task.tables["train"], **sets})
    metrics = replace(run, program=replace(run.program, task=parted)).evaluate()
    return {
        "attention": list(run.program.experiment.model.pattern),
        "split": task.config.split,
        "seed": task.config.seed,
        "step": run.step,
        "untrained_terms": task.missing_terms,
        "held_out": {
            name: {"functions": len(table_CxK), "r2": round(metrics[f"{name}_r2"], 4)}
            for name, table_CxK in sets.items()
        },
    }


def by_untrained(functions_CxK: np.ndarray, untrained: Sequence[int]) -> dict[int, np.ndarray]:
    """The functions by how many of their terms are untrained."""
    count_C = np.isin(functions_CxK, untrained).sum(axis=1)
    return {int(count): functions_CxK[count_C == count] for count in np.unique(count_C)}


if __name__ == "__main__":
    ending.process(main)
