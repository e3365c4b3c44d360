"""The options of commands that open a trained run."""

import argparse

from hyla_lm.cli.command_line import add_gin_files


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds what `hyla_lm.run.restored.restore` reads."""
    add_gin_files(parser)
    parser.add_argument(
        "--workdir",
        required=True,
        help="folder of a run with checkpoints, such as --workdir=runs/mine",
    )
    parser.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    parser.add_argument(
        "--trust_imports",
        action="store_true",
        help="let config.gin of the run import modules that are not of this project",
    )
