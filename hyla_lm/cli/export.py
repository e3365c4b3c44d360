"""Example: hyla-lm export --workdir=runs/mine --output=my_model"""

import argparse

from hyla_lm.cli.parser import add_run, load_model

HELP = "write a checkpoint as a folder for PyTorch"
MEGABYTE = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--output", required=True, help="new folder")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.export.folder import check_new_folder, write_folder

    check_new_folder(options.output)  # before a model is loaded
    model = load_model(options, bindings)
    size = write_folder(model, options.output)
    print(f"{options.output}: step {model.step}, {size / MEGABYTE:,.1f} MB")
