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
    if words:
        print(settings.details(_matching(words)))
    elif not files:
        print(settings.overview(settings.settings()))


def text_of_file(file: str) -> str:
    """What a gin file sets, with all that it includes; a line of an included file names it."""
    from hyla_lm.config import gin_text

    with open(gin_text.find(file), encoding="utf-8") as opened:
        comment = _comment(opened.read())
    includes, imports = [], []
    values: dict[gin_text.Key, str] = {}
    for path, statement in gin_text.statements_of_file(file):
        if isinstance(statement, gin_text.IncludeStatement):
            includes.append(f"  includes {statement.filename}")
        elif isinstance(statement, gin_text.ImportStatement):
            imports.append(f"  imports {statement.module}")
        elif isinstance(statement, gin_text.BindingStatement):
            key = gin_text.key_of(statement)
            origin = "" if path == file else f"  # {path}"
            values[key] = f"  {key} = {statement.value!r}{origin}"
    lines = [file, *(f"  {line}" for line in comment), *includes, *imports]
    if macros := [line for key, line in values.items() if not key.field]:
        lines += ["", "Macros; --gin.NAME=value changes all settings that use one:", *macros]
    lines += ["", "Settings; --gin.Class.field=value changes one:"]
    return "\n".join([*lines, *(line for key, line in values.items() if key.field)])


def _comment(text: str) -> list[str]:
    """The lines of the comment at the top."""
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return lines


def _matching(words: list[str]) -> list[settings.Settings]:
    every = settings.settings()
    matching = settings.matching(every, words)
    if not matching:
        names = [name for one in every for name in (one.name, *(f.name for f in one.fields))]
        meant = did_you_mean(words[0], names) or "; hyla-lm describe lists all."
        raise UserError(f"no setting has {' or '.join(map(repr, words))} in its name{meant}")
    return matching
