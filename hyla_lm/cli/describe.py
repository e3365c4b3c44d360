"""Example: hyla-lm describe attention"""

import argparse

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.errors import UserError, did_you_mean

HELP = "every setting, or those of a class or with a word in name or meaning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", help="class, setting or word, such as attention")
    add_gin_files(parser, "file that imports more classes; may be repeated")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.config.read_experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm.config import gin_files, settings

    gin_files.parse(options.gin_file, bindings)
    classes = settings.classes()
    text = settings.text_of(classes, options.words)
    if not text:
        names = [one.name for cls in classes for one in settings.settings_of(cls)]
        known = [*(cls.__name__ for cls in classes), *names]
        meant = did_you_mean(options.words[0], known) or "; hyla-lm describe lists all."
        words = " or ".join(map(repr, options.words))
        raise UserError(f"no setting has {words} in its name or meaning{meant}")
    print(text)
