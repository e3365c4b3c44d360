"""hyla-lm coordcheck."""

import argparse

from hyla_lm.cli.parser import add_gin_files

HELP = "how activations and their changes grow with width, standard and in muP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument("--widths", default="64,128,256,512", help="values of model_dim")
    parser.add_argument("--variants", default="softmax,linear,hyla", help="kinds of attention")
    parser.add_argument("--steps", type=int, default=10, help="updates")
    parser.add_argument("--seeds", type=int, default=3, help="models of each width")
    parser.add_argument(
        "--grow",
        default="heads",
        choices=("heads", "head_dim"),
        help="what grows with width: the number of heads or their size",
    )
    parser.add_argument(
        "--only", choices=("standard", "mup"), help="measure one parametrisation, not both"
    )
    parser.add_argument(
        "--random_tokens", action="store_true", help="one batch of random tokens instead of data"
    )
    parser.add_argument(
        "--bound", type=float, help="status 1 if a judged slope is farther from 0 (table: 0.1)"
    )
    parser.add_argument("--output", help="folder for coordcheck.json and coordcheck.png")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.tools.coordcheck.command import run

    return run(options, bindings)
