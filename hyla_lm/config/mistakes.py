"""What is wrong with gin text: where it is, and what may have been meant."""

import dataclasses
import re
import typing
from collections.abc import Iterable, Iterator
from typing import Any

from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.gin_text import (
    GIN_ERRORS,
    BindingStatement,
    BlockDeclaration,
    NoValue,
    Statement,
    references,
    value_of,
)
from hyla_lm.config.settings import homes
from hyla_lm.errors import UserError, did_you_mean, nearest, printable

LINE = re.compile(r"\s*([\w./%]+)\s*=\s*(.*?)\s*")
WORDS = {"true": "True", "false": "False", "none": "None", "null": "None"}
BRACKETS = tuple("'\"([{@%")


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind if it has none."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def located(path: str, parsed: Iterable[tuple[str, Statement]]) -> Iterator[tuple[str, Statement]]:
    """The statements of a gin file; raises UserError that says where one cannot be parsed."""
    if path.endswith(".py"):
        raise UserError(f"{path} is Python, not gin: give a gin file that imports it.")
    try:
        yield from parsed
    except UserError as error:
        raise UserError(first_line(error)) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{printable(path)} is not UTF-8 text: give a gin file.") from error
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno}" if error.lineno else path
        raise UserError(printable(f"{where}: {_of_syntax(error)}.")) from error
    except GIN_ERRORS as error:
        reason = first_line(error).rstrip(".")
        raise UserError(f"{printable(path)}: {reason}; correct that file.") from error


def of_statement(statement: Statement) -> str:
    """What is wrong with a statement that parsed; empty if nothing is."""
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


def unknown_field(name: str, field: str) -> str:
    """The sentence about a setting that a class does not have."""
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


def _of_class(selector: str) -> str:
    name = selector.rpartition("/")[2].rpartition(".")[2]
    if name in REGISTRY:
        return ""
    module = homes().get(name)
    if module:
        return f"{name} is unknown before its module is imported: add a line import {module}"
    return f"there is no class {name!r}{did_you_mean(name, {*REGISTRY, *homes()})}"


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
