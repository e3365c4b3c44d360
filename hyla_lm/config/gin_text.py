"""gin text as data: its statements, those of the files that it includes, and where files are.

The grammar is gin's own parser. Nothing is imported or built here.
"""

import os
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gin.config_parser import (
    BindingStatement,
    BlockDeclaration,
    ConfigParser,
    ImportStatement,
    IncludeStatement,
    ParserDelegate,
)

from hyla_lm.errors import UserError, did_you_mean, printable
from hyla_lm.package import folder

__all__ = ["BindingStatement", "BlockDeclaration", "ImportStatement", "IncludeStatement"]

Statement = Any  # one of gin's four kinds, which has no types
# What gin and Python's tokenizer raise of text that is no configuration.
GIN_ERRORS = (
    *(ValueError, SyntaxError, TypeError, ImportError, OSError, AttributeError),
    *(ArithmeticError, LookupError, NameError, RuntimeError, AssertionError, MemoryError),
    tokenize.TokenError,
)
FOLDER = "gin"
FIRST = "gin/quickstart.gin"


class Reference(NamedTuple):
    """A name in a value: @name() or @name of a class, or %name of a macro."""

    text: str
    name: str

    def __repr__(self) -> str:
        return self.text


class Key(NamedTuple):
    """The target of a line: a field of a class in a scope, or a macro, whose field is empty."""

    scope: str
    name: str
    field: str

    def __str__(self) -> str:
        return f"{self.configurable}.{self.field}" if self.field else self.name

    @property
    def configurable(self) -> str:
        return f"{self.scope}/{self.name}" if self.scope else self.name


class NoValue(ValueError):
    """A text that gin does not read as one value."""


class _Names(ParserDelegate):
    """Leaves references as their names, so that nothing has to be imported to parse."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        call = "()" if evaluate else ""
        return Reference(f"@{scoped_configurable_name}{call}", scoped_configurable_name)

    def macro(self, macro_name: str) -> Reference:
        return Reference(f"%{macro_name}", macro_name)


def statements(text: str | TextIO) -> Iterator[Statement]:
    """The statements of a text or of an open file; raises one of GIN_ERRORS."""
    yield from ConfigParser(text, _Names())


def statements_of_file(path: str) -> Iterator[tuple[str, Statement]]:
    """The statements of a gin file, with its path, and of what it includes, in their order.

    Raises UserError for a file that is not there, one of GIN_ERRORS for text that is not gin.
    """
    with open(find(path), encoding="utf-8") as file:
        yield from with_includes(path, file)


def with_includes(
    name: str, text: str | TextIO, outer: tuple[str, ...] = ()
) -> Iterator[tuple[str, Statement]]:
    """The statements of a text of this name, and after an include those of the file."""
    for statement in statements(text):
        yield name, statement
        if isinstance(statement, IncludeStatement):
            inner = statement.filename
            if inner in (*outer, name):
                raise UserError(f"{printable(name)} includes {inner}, which includes it: end that.")
            with open(find(inner, "include "), encoding="utf-8") as file:
                yield from with_includes(inner, file, (*outer, name))


def key_of(statement: BindingStatement) -> Key:
    """The target of a binding; the module that may stand before a class is left out."""
    if not statement.arg_name:
        scope = f"{statement.scope}/" if statement.scope else ""
        return Key("", f"{scope}{statement.selector}", "")
    return Key(statement.scope or "", statement.selector.rpartition(".")[2], statement.arg_name)


def value_of(text: str) -> Any:
    """The value that a text is, with References for what it names; raises NoValue."""
    try:
        parsed = list(statements(f"name = {text}"))
    except GIN_ERRORS as error:
        raise NoValue(text) from error
    if len(parsed) != 1 or not isinstance(parsed[0], BindingStatement):
        raise NoValue(text)
    return parsed[0].value


def references(value: Any) -> list[Reference]:
    """The names in a value, in containers too."""
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    items = value if isinstance(value, tuple | list) else ()
    return [reference for item in items for reference in references(item)]


def find(path: str, given_as: str = "--gin_file=") -> str:
    """The path of a gin file, from here or of the package; raises UserError if there is none."""
    given = given_as + printable(path)
    for candidate in (Path(path), folder(FOLDER).parent / path):
        with suppress(OSError, ValueError):
            if candidate.is_file():
                return str(candidate)
            if candidate.is_dir():
                raise UserError(f"{given} is a folder: give a gin file in it.")
    meant = did_you_mean(path, known_files()) or did_you_mean(f"{FOLDER}/{path}", known_files())
    raise UserError(
        f"{given} does not exist"
        f"{meant or ': give the path of a gin file, from here or of the package.'}"
    )


def known_files() -> list[str]:
    """The gin files of the package, the first to try first, and those under ./gin and here."""
    files = [FIRST]
    for root in (folder(FOLDER).parent, Path()):
        paths = sorted((root / FOLDER).rglob("*.gin"))
        files += [path.relative_to(root).as_posix() for path in paths]
    return list(dict.fromkeys([*files, *sorted(path.name for path in Path().glob("*.gin"))]))


def choice_of_files() -> str:
    """The known gin files for a sentence: those of folders below gin/ as their folders."""
    every = known_files()
    files = [path for path in every if path.count("/") < 2]
    folders = dict.fromkeys(os.path.dirname(path) for path in every if path.count("/") > 1)
    return f"{', '.join(files)} or one in {', '.join(folders)}"


def files_that_set(name: str, without: str) -> list[str]:
    """The known gin files that set one setting, but for those that also set another."""
    every = {path: settings_in(path) for path in known_files()}
    return [path for path, names in every.items() if name in names and without not in names]


def settings_in(path: str) -> set[str]:
    """The settings, as Class.field, that a file and its includes set; none if it is not gin."""
    with suppress(UserError, *GIN_ERRORS):
        bindings = [s for _, s in statements_of_file(path) if isinstance(s, BindingStatement)]
        return {f"{key.name}.{key.field}" for key in map(key_of, bindings)}
    return set()
