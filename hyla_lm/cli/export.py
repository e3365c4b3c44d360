"""hyla-lm export."""

import argparse

from hyla_lm.cli.parser import add_run

HELP = "write a checkpoint as a folder for PyTorch, or as a StableHLO file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--output", required=True, help="new folder, or new file of stablehlo")
    parser.add_argument(
        "--format", choices=("safetensors", "stablehlo"), default="safetensors", help="what to make"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.export.command import run

    run(options, bindings)
