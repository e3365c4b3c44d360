"""hyla-lm export: from a run to a folder or a file."""

import argparse

from hyla_lm.export.card import validation_of
from hyla_lm.export.folder import check_new_folder, write_folder
from hyla_lm.export.load import load
from hyla_lm.export.stablehlo import check_new_file, write_stablehlo

MEGABYTE = 1e6


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    """Exports a checkpoint and prints what was made; raises UserError before it loads a model."""
    check_new = check_new_file if options.format == "stablehlo" else check_new_folder
    check_new(options.output)
    model = load(options.workdir, options.step, options.trust_imports, options.gin_file, bindings)
    if options.format == "stablehlo":
        size = write_stablehlo(model, options.output)
    else:
        size = write_folder(model, options.output, validation_of(options.workdir, model.step))
    print(f"{options.output}: step {model.step}, {size / MEGABYTE:,.1f} MB")
