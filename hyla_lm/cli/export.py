"""hyla-lm export: from a run to a folder or a file."""

import argparse

from hyla_lm.cli.parser import add_run

HELP = "write a checkpoint as a folder for PyTorch, or as a StableHLO file"
MEGABYTE = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--output", required=True, help="new folder, or new file of stablehlo")
    parser.add_argument(
        "--format", choices=("safetensors", "stablehlo"), default="safetensors", help="what to make"
    )


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.export.card import validation_of
    from hyla_lm.export.folder import check_new_folder, write_folder
    from hyla_lm.export.load import load
    from hyla_lm.export.stablehlo import check_new_file, write_stablehlo

    is_file = options.format == "stablehlo"
    # What is wrong with --output shows before a model is loaded.
    (check_new_file if is_file else check_new_folder)(options.output)
    model = load(options.workdir, options.step, options.trust_imports, options.gin_file, bindings)
    if is_file:
        size = write_stablehlo(model, options.output)
    else:
        size = write_folder(model, options.output, validation_of(options.workdir, model.step))
    print(f"{options.output}: step {model.step}, {size / MEGABYTE:,.1f} MB")
