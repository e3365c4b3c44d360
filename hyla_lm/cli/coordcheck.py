"""Example: hyla-lm coordcheck --gin_file=gin/coordcheck.gin --workdir=runs/coordcheck"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.errors import UserError

HELP = "how activations and their changes grow with width, standard and in muP"
NOT_FLAT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument("--widths", default="64,128,256,512", help="values of model_dim")
    parser.add_argument("--steps", type=int, default=10, help="updates")
    parser.add_argument("--seeds", type=int, default=3, help="models of each width")
    parser.add_argument(
        "--bound", type=float, default=0.1, help="status 1 if a judged slope is farther from 0"
    )
    parser.add_argument("--output", help="folder for coordcheck.json")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the slopes; status 1 if a judged slope exceeds the bound."""
    from hyla_lm.config.read_experiment import read_experiment
    from hyla_lm.tools import coordcheck

    widths = [int(part) if part.isdecimal() else 0 for part in options.widths.split(",")]
    if len(widths) < 2 or any(low >= high for low, high in pairwise([0, *widths])):
        raise UserError(f"--widths={options.widths} must be two or more rising whole numbers.")
    for name in ("steps", "seeds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name}={getattr(options, name)} must be at least 1.")
    if not options.bound > 0:
        raise UserError(f"--bound={options.bound} must be above 0.")
    experiment = read_experiment(options.gin_file, bindings)
    curves, losses = coordcheck.check(experiment, widths, options.steps, options.seeds)
    print("\n".join(coordcheck.table(curves, options.bound)))
    judged = [c for c in curves if c.parametrisation == coordcheck.MUP and c.is_judged]
    over = [c for c in judged if not abs(c.slope) <= options.bound]
    print(
        f"mup: {len(over)} of {len(judged)} judged slopes are not within {options.bound} of flat."
    )
    if options.output:
        folder = Path(options.output)
        settings = {"widths": widths, "steps": options.steps, "seeds": options.seeds}
        content = {**settings, "gin": experiment.text, "losses": losses}
        report = json.dumps({**content, "curves": [curve.as_json() for curve in curves]})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "coordcheck.json").write_text(f"{report}\n")
        print(f"wrote {folder}/coordcheck.json")
    return NOT_FLAT if over else 0
