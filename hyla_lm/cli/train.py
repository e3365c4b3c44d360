"""Example: hyla-lm train --gin_file=gin/quickstart.gin --workdir=runs/first"""

import argparse

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.signals import signals

HELP = "train, or resume from the newest checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser, "may be repeated (default: config.gin of the run)")
    parser.add_argument(
        "--trust_imports", action="store_true", help="let config.gin of the run import any module"
    )
    parser.add_argument(
        "--workdir", required=True, help="folder of the run, such as --workdir=runs/mine"
    )
    parser.add_argument(
        "--step", type=int, help="resume from this checkpoint; later ones are moved to set_aside"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    with signals():
        from hyla_lm.config.read_experiment import read_experiment
        from hyla_lm.parallel import processes
        from hyla_lm.run.restored import own_config
        from hyla_lm.train import train

        with processes.joined(options.workdir):
            own = None if options.gin_file else own_config(options.workdir, options.trust_imports)
            experiment = read_experiment([own] if own else options.gin_file, bindings)
            train(experiment, options.workdir, options.step)
