"""gin's grammar: statements and values of a text, without importing or building anything."""

import threading
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO, TypeAlias

from gin.config_parser import (
    BindingStatement,
    BlockDeclaration,
    ConfigParser,
    ImportStatement,
    IncludeStatement,
    ParserDelegate,
)

Statement: TypeAlias = Any  # one of gin's four kinds, which has no types
__all__ = [
    "GIN_ERRORS",
    "LOCK",
    "BindingStatement",
    "BlockDeclaration",
    "ImportStatement",
    "IncludeStatement",
    "NoValue",
    "Reference",
    "Statement",
    "references",
    "statements",
    "value_of",
]

# Threads parse one after the other: gin has one state, and CPython's parser is not safe in threads.
LOCK = threading.Lock()
# What gin and Python's tokenizer raise of text that is no configuration.
GIN_ERRORS = (
    *(
        ValueError,
        SyntaxError,
        TypeError,
        ImportError,
        OSError,
        AttributeError,
        tokenize.TokenError,
    ),
    *(ArithmeticError, LookupError, NameError, RuntimeError, AssertionError, MemoryError),
)


class Reference(NamedTuple):
    """A name in a value: @name() or @name of a class, or %name of a macro."""

    text: str
    name: str

    def __repr__(self) -> str:
        return self.text


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


def value_of(text: str) -> Any:
    """The value that a text is, with References for what it names; raises NoValue."""
    try:
        found = list(statements(f"name = {text}"))
    except GIN_ERRORS as error:
        raise NoValue(text) from error
    if len(found) != 1 or not isinstance(found[0], BindingStatement):
        raise NoValue(text)
    return found[0].value


def references(value: Any) -> list[Reference]:
    """The names in a value, in containers too."""
    if isinstance(value, Reference):
        return [value]
    if isinstance(value, dict):
        value = [*value, *value.values()]
    items = value if isinstance(value, tuple | list) else ()
    return [reference for item in items for reference in references(item)]
