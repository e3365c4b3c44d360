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

import jax
import numpy as np

from hyla_lm.config import UserError, exit_status
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogicTask
from hyla_lm.input.files import write_whole
from hyla_lm.running.restored import RestoredRun, open_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes and prints a JSON; a mistake of the user is status 2."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser("untrained_terms", description=__doc__)
    parser.add_argument("--workdir", required=True, help="folder of a run with checkpoints")
    parser.add_argument("--output", type=Path, required=True, help="the JSON to write")
    options = parser.parse_args(argv)
    try:
        run = open_run(options.workdir, devices=jax.devices()[:1])
        found = {
            "command": " ".join(["python docs/studies/untrained_terms.py", *argv]),
            **measure(run),
        }
    except UserError as error:
        print(f"untrained_terms: {error}", file=sys.stderr)
        return exit_status(error)
    write_whole(options.output, (json.dumps(found, indent=1) + "\n").encode())
    print(options.output.read_text(), end="")
    return 0


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
    sys.exit(main())
