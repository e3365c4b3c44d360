"""gin text as data: its statements, those of the files that it includes, and where files are.

The grammar is gin's own parser. Nothing is imported or built here.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from gin.config_parser import (
    BindingStatement,
    ConfigParser,
    ImportStatement,
    IncludeStatement,
    ParserDelegate,
)

from hyla_lm.errors import UserError, did_you_mean, printable
from hyla_lm.package import folder

__all__ = ["BindingStatement", "ImportStatement", "IncludeStatement"]

Statement = Any  # one of gin's four kinds, which has no types
FOLDER = "gin"
BINDING = "--gin."
VALUES = "write Class.field = value, the value as in Python: 3, 'text', True, ('a', 'b')"


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


class _Names(ParserDelegate):
    """Leaves references as their names, so that nothing has to be imported to parse."""

    def configurable_reference(self, scoped_configurable_name: str, evaluate: bool) -> Reference:
        call = "()" if evaluate else ""
        return Reference(f"@{scoped_configurable_name}{call}", scoped_configurable_name)

    def macro(self, macro_name: str) -> Reference:
        return Reference(f"%{macro_name}", macro_name)


def first_line(error: BaseException) -> str:
    """The first line of an error's text without its full stop, or its kind if it has none."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return printable(lines[0]).rstrip(".")


def statements(name: str, text: str | TextIO) -> Iterator[tuple[str, Statement]]:
    """The statements of a text of this name, each with where it is; raises UserError."""
    try:
        for statement in ConfigParser(text, _Names()):
            yield _where(name, statement.location.line_num), statement
    except SyntaxError as error:
        line = (error.text or "nothing").strip()
        where = _where(name, error.lineno)
        raise UserError(printable(f"{where}: {line} is no line of gin: {VALUES}.")) from error
    except Exception as error:  # gin and Python's tokenizer raise many kinds
        raise UserError(f"{printable(name)}: {first_line(error)}: {VALUES}.") from error


def _where(name: str, line: int | None) -> str:
    return name if name.startswith(BINDING) or line is None else f"{name}:{line}"


def with_includes(
    name: str, text: str | TextIO, above: tuple[str, ...] = ()
) -> Iterator[tuple[str, Statement]]:
    """`statements`, and after an include those of the file, which is opened then.

    `above` are the files that are being read. Raises UserError for an include of one of them.
    """
    for where, statement in statements(name, text):
        yield where, statement
        if isinstance(statement, IncludeStatement):
            yield from statements_of_file(statement.filename, "include ", above)


def statements_of_file(
    path: str, given_as: str = "--gin_file=", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, Statement]]:
    """The statements of a gin file and of what it includes, in their order; raises UserError."""
    try:
        found = os.path.realpath(find(path, given_as))
        if found in above:
            raise UserError(
                f"{printable(path)} includes itself: take an include out of {above[-1]}."
            )
        with open(found, encoding="utf-8") as file:
            yield from with_includes(path, file, (*above, found))
    except (OSError, ValueError) as error:  # of opening it
        raise UserError(f"{given_as}{printable(path)}: {first_line(error)}.") from error


def key_of(statement: BindingStatement) -> Key:
    """The target of a binding; the module that may stand before a class is left out."""
    if not statement.arg_name:
        scope = f"{statement.scope}/" if statement.scope else ""
        return Key("", f"{scope}{statement.selector}", "")
    return Key(statement.scope or "", statement.selector.rpartition(".")[2], statement.arg_name)


def value_of(text: str) -> Any:
    """The value that a text is, with References for what it names; raises ValueError."""
    try:
        parsed = list(ConfigParser(f"name = {text}", _Names()))
    except Exception as error:
        raise ValueError(text) from error
    if len(parsed) != 1 or not isinstance(parsed[0], BindingStatement):
        raise ValueError(text)
    return parsed[0].value


def references(value: Any) -> list[Reference]:
    """The names in a value, in containers too."""
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    items = value if isinstance(value, tuple | list) else ()
    return [reference for item in items for reference in references(item)]


def find(path: str, given_as: str) -> str:
    """The path of a gin file, from here or of the package; raises UserError if there is none."""
    for candidate in (Path(path), folder(FOLDER).parent / path):
        if candidate.exists():
            return str(candidate)
    known = known_files()
    meant = did_you_mean(path, known) or did_you_mean(f"{FOLDER}/{path}", known)
    ending = meant or ": give the path of a gin file, from here or of the package."
    raise UserError(f"{given_as}{printable(path)} does not exist{ending}")


def known_files() -> list[str]:
    """The gin files of the package, those under ./gin and those here."""
    roots = (folder(FOLDER).parent, Path())
    paths = [p.relative_to(root) for root in roots for p in sorted((root / FOLDER).rglob("*.gin"))]
    return [path.as_posix() for path in (*paths, *sorted(Path().glob("*.gin")))]
