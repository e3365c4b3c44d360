"""hyla-lm describe."""

import argparse

from hyla_lm.cli.command_line import add_gin_files
from hyla_lm.config import settings
from hyla_lm.config.suggestions import did_you_mean
from hyla_lm.errors import UserError

HELP = "every setting, those of a class or with a word in them, or what a gin file sets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", help="class, setting or word, such as attention; or a gin file"
    )
    add_gin_files(parser, "file that imports more classes; may be repeated")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.config.experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm.config import contents, gin_files

    files = [what for what in options.what if what.endswith(".gin")]
    words = [what for what in options.what if what not in files]
    gin_files.check(options.gin_file, bindings)
    for file in files:
        gin_files.check([file], [])
        print(contents.text(contents.contents(file)))
    if words:
        print(settings.details(_found(words)))
    elif not files:
        print(settings.overview(settings.settings()))


def _found(words: list[str]) -> list[settings.Settings]:
    every = settings.settings()
    found = settings.matching(every, words)
    if not found:
        names = [name for one in every for name in (one.name, *(f.name for f in one.fields))]
        meant = did_you_mean(words[0], names) or "; hyla-lm describe lists all."
        raise UserError(f"no setting has {' or '.join(map(repr, words))} in its name{meant}")
    return found
