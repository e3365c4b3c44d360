"""hyla-lm calibrate."""

import argparse

from hyla_lm.cli.parser import add_gin_files

HELP = "what the device here computes, and how fast"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(
        parser,
        "several go in any order; default: gin/c4_50m_hyla.gin on a GPU or TPU, "
        "gin/calibrate_cpu.gin on a CPU",
    )
    parser.add_argument("--output", required=True, help="file of the result, such as chip.json")
    parser.add_argument("--repeats", type=int, default=20, help="most runs of each timing")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.tools.calibrate.command import run

    return run(options, bindings)
