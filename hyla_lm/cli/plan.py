"""hyla-lm plan."""

import argparse

from hyla_lm.cli.parser import add_gin_files

HELP = "memory, speed and chip-hours on a TPU slice, without one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument("--topology", required=True, help="slice, such as v5e:4x4")
    parser.add_argument(
        "--slices", type=int, default=1, help="slices of it, for MeshConfig.replica"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--compiles", type=int, default=6, help="most compiles to find the largest batch (0: none)"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.tools.plan.command import run

    return run(options, bindings)
