"""hyla-lm inspect."""

import argparse

HELP = "what a checkpoint holds, and if it is whole"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdir", help="folder of a run with checkpoints")
    parser.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    parser.add_argument("--against", help="folder of another run, to compare with; 1 if it differs")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.run.inspect import run

    return run(options.workdir, options.step, options.against)
