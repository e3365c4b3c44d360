"""Example: hyla-lm evaluate --workdir=runs/mine"""

import argparse
import json
from functools import partial

from hyla_lm.cli.parser import add_run
from hyla_lm.errors import UserError

HELP = "validation metrics of a checkpoint, or of each as it comes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--follow",
        action="store_true",
        help="evaluate each new checkpoint of a run that trains, until it is finished",
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    if options.follow and options.step is not None:
        raise UserError("--follow evaluates every step: leave --step out, or --follow.")
    from hyla_lm.parallel import processes
    from hyla_lm.run.follow import follow
    from hyla_lm.run.restored import open_run, program_of

    with processes.joined(options.workdir):
        if options.follow:
            prepare = partial(
                program_of,
                options.workdir,
                options.gin_file,
                bindings,
                trust_imports=options.trust_imports,
            )
            follow(options.workdir, prepare, partial(print, flush=True))
            return
        restored = open_run(
            options.workdir,
            options.step,
            options.gin_file,
            bindings,
            trust_imports=options.trust_imports,
        )
        metrics = restored.evaluation().metrics
        if processes.is_process_0():
            print(json.dumps({"step": restored.step, **metrics}, indent=1))
