"""hyla-lm describe."""

import argparse

from hyla_lm.command_line import add_gin_files

HELP = "every bindable field with type, default and doc"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm import gin_files, settings

    gin_files.check(options.gin_file, bindings)
    print(settings.overview(settings.settings()))
