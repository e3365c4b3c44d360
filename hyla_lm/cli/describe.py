"""hyla-lm describe."""

import argparse

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.config import settings
from hyla_lm.errors import UserError, did_you_mean

HELP = "every setting, those of a class or with a word in them, or what a gin file sets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", help="class, setting or word, such as attention; or a gin file"
    )
    add_gin_files(parser, "file that imports more classes; may be repeated")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.config.read_experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm.config import gin_files

    files = [what for what in options.what if what.endswith(".gin")]
    words = [what for what in options.what if what not in files]
    gin_files.check(options.gin_file, bindings)
    for file in files:
        gin_files.check([file], [])
        print(text_of_file(file))
    if words or not files:
        every = settings.settings()
        print(settings.text_of(_matching(every, words) if words else every))


def text_of_file(file: str) -> str:
    """What a gin file sets, with all that it includes, and which line sets it."""
    from hyla_lm.config import gin_text

    lines = {
        gin_text.key_of(statement): f"  {gin_text.key_of(statement)} = {statement.value!r}  # {at}"
        for at, statement in gin_text.statements_of_file(file)
        if isinstance(statement, gin_text.BindingStatement)
    }
    return "\n".join([file, *lines.values()])


def _matching(every: list[settings.Settings], words: list[str]) -> list[settings.Settings]:
    matching = settings.matching(every, words)
    if not matching:
        names = [name for one in every for name in (one.name, *(f.name for f in one.fields))]
        meant = did_you_mean(words[0], names) or "; hyla-lm describe lists all."
        raise UserError(f"no setting has {' or '.join(map(repr, words))} in its name{meant}")
    return matching
