"""hyla-lm compare."""

import argparse

HELP = "how runs differ on the same validation documents, with intervals"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", help="folders of runs; seeds of one config are a group")
    parser.add_argument("--at", default="steps", help="steps, tokens, flops or seconds")
    parser.add_argument("--set", help="validation set to take (default: the first one)")
    parser.add_argument("--baseline", help="run or group with which alone the others are compared")
    parser.add_argument("--output", help="folder for comparison.html, comparison.png and .json")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument(
        "--evaluate",
        action="store_true",
        help="evaluate the newest checkpoint of runs that kept no losses",
    )
    parser.add_argument(
        "--trust_imports",
        action="store_true",
        help="let config.gin of the runs import modules that are not of this project",
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.tools.compare.command import run

    run(options)
