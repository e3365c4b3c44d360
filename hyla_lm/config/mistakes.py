"""What is wrong with gin text that gin refused: where it is, and what may have been meant."""

import dataclasses
import re
import typing
from collections.abc import Iterable
from typing import Any

from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.paths import everything
from hyla_lm.config.settings import homes
from hyla_lm.config.suggestions import did_you_mean, nearest
from hyla_lm.config.syntax import (
    GIN_ERRORS,
    BindingStatement,
    BlockDeclaration,
    NoValue,
    Statement,
    references,
    statements,
    value_of,
)
from hyla_lm.errors import UserError

LINE = re.compile(r"\s*([\w./%]+)\s*=\s*(.*?)\s*")
WORDS = {"true": "True", "false": "False", "none": "None", "null": "None"}
BRACKETS = tuple("'\"([{@%")


def in_line(text: str) -> str:
    """What is wrong with a line of the command line; empty if nothing is known."""
    try:
        return _first(("", statement) for statement in statements(text))[1]
    except GIN_ERRORS:
        return ""


def in_file(path: str) -> str:
    """What is wrong with a gin file or one that it includes, after the place of the mistake."""
    if path.endswith(".py"):
        return f"{path} is Python, not gin: give a gin file that imports it."
    try:
        place, sentence = _first(everything(path))
        return f"{place}: {sentence}" if sentence else ""
    except UserError as error:
        return f"{path}: {error}"
    except UnicodeDecodeError:
        return f"{path} is not UTF-8 text: give a gin file."
    except SyntaxError as error:
        return f"{_place(error.filename or path, error.lineno)}: {_of_syntax(error)}"
    except GIN_ERRORS:
        return ""


def unknown_class(name: str) -> str:
    """What is said of a class that no gin text has made known."""
    module = homes().get(name)
    if module:
        return f"{name} is unknown before its module is imported: add a line import {module}"
    return f"there is no class {name!r}{did_you_mean(name, {*REGISTRY, *homes()})}"


def unknown_field(name: str, field: str) -> str:
    """What is said of a setting that a class has not."""
    own = nearest(field, fields_of(name))
    meant = f"{name}.{own}" if own else setting_like(field)
    ending = f"; did you mean {meant}?" if meant else f"; hyla-lm describe {name} lists them"
    return f"{name} has no setting {field!r}{ending}"


def setting_like(field: str) -> str:
    """The setting of any known class with this name, or a like one; empty if there is none."""
    owners = {own: name for name in reversed(REGISTRY) for own in fields_of(name)}
    own = field if field in owners else nearest(field, owners)
    return f"{owners[own]}.{own}" if own else ""


def fields_of(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(typing.cast(Any, REGISTRY[name]))]


def _first(found: Iterable[tuple[str, Statement]]) -> tuple[str, str]:
    """The first mistake of some statements, with its place; empty if there is none."""
    for path, statement in found:
        sentence = _of_statement(statement)
        if sentence:
            return _place(path, statement.location.line_num), sentence
    return "", ""


def _place(path: str, line: int | None) -> str:
    return f"{path}:{line}" if line else path


def _of_statement(statement: Statement) -> str:
    if isinstance(statement, BlockDeclaration):
        return _of_class(statement.selector)
    if not isinstance(statement, BindingStatement):
        return ""
    if statement.arg_name:
        name = statement.selector.rpartition(".")[2]
        wrong = _of_class(statement.selector)
        if wrong or statement.arg_name not in fields_of(name):
            return wrong or unknown_field(name, statement.arg_name)
    classes = [one.name for one in references(statement.value) if one.text.startswith("@")]
    return next((wrong for wrong in map(_of_class, classes) if wrong), "")


def _of_class(selector: str) -> str:
    name = selector.rpartition("/")[2].rpartition(".")[2]
    return "" if name in REGISTRY else unknown_class(name)


def _of_syntax(error: SyntaxError) -> str:
    """What is wrong with the line that gin could not parse."""
    line = (error.text or "").rstrip("\n")
    match = LINE.fullmatch(line)
    if match is None:
        return f"{line.strip() or error.msg} is no line of gin: write Class.field = value"
    key, value = match.groups()
    if value.lower() in WORDS:
        return f"write {key} = {WORDS[value.lower()]}"
    if not value.startswith(BRACKETS) and not _is_value(value):
        return f"text needs quotes in a gin file: write {key} = {value!r}"
    return f"{value or 'nothing'} is no value of gin (text needs quotes that close)"


def _is_value(text: str) -> bool:
    try:
        value_of(text)
    except NoValue:
        return False
    return True
