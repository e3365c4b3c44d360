"""Bindings of the command line as lines of gin: strings and paths need no quotes there.

The type of the field decides: a text that gin reads as a value of that type stays what it is, and
any other is a string where the field takes strings. A macro has no type and takes any text.
"""

import re
import typing
from typing import Any

from hyla_lm.config.declare import REGISTRY, STATEMENT, has_type, type_name
from hyla_lm.config.gin_text import NoValue, references, value_of
from hyla_lm.errors import UserError, printable

KEY = re.compile(r"[\w./%]+")
BOOLS = {"true": "True", "false": "False"}
OPENING = ("'", '"', "@", "%")
UNREAD = object()


def as_line(binding: str) -> str:
    """The line of gin that a binding of the command line means; raises UserError."""
    key, equals, text = (part.strip() for part in binding.partition("="))
    if STATEMENT.match(binding) or (equals and not KEY.fullmatch(key)):
        return binding
    if not equals:
        given = f"--gin.{printable(binding)}"
        raise UserError(f"{given} has no value: write {given}=VALUE.")
    found = _hint(key)
    try:
        return f"{key} = {_value(text, found)}"
    except NoValue as error:
        raise UserError(printable(f"--gin.{binding}: {error}.")) from None


def _hint(key: str) -> Any:
    """The type of the field that a key names; Any for a macro and for what does not exist."""
    name, _, field = key.rpartition("/")[2].rpartition(".")
    cls = REGISTRY.get(name.rpartition(".")[2])
    return typing.get_type_hints(cls).get(field, Any) if cls else Any


def _value(text: str, hint: Any) -> str:
    """The value in gin's words; raises NoValue, which says what is wanted."""
    value = _read(text)
    if value is not UNREAD and (references(value) or has_type(value, hint)):
        return text
    item = item_of(hint)
    if item is not None and "," in text and not isinstance(value, list):
        return _several(text, hint, item)
    if takes(hint, bool) and text.lower() in BOOLS:
        return BOOLS[text.lower()]
    if _is_text(text, value, hint):
        return repr(text)
    if value is not UNREAD:
        return text  # of another type, which the class refuses
    if text.startswith(OPENING):
        raise NoValue(
            f"{text} is no value: text that begins with {text[0]} needs quotes that close"
        )
    if hint is Any or item is str:
        return repr(text)
    raise NoValue(_wanted(text, hint))


def _read(text: str) -> Any:
    try:
        return value_of(text)
    except NoValue:
        return UNREAD


def _is_text(text: str, value: Any, hint: Any) -> bool:
    """Whether a text of a field that takes strings is one: a word, a path, also a number."""
    if not takes(hint, str):
        return False
    return isinstance(value, int | float) or (value is UNREAD and not text.startswith(OPENING))


def _several(text: str, hint: Any, item: Any) -> str:
    """A tuple of values, with or without parentheses and, of strings, with or without quotes."""
    if text.startswith("(") and not text.endswith(")"):
        raise NoValue(f"{text} is no value: close the parenthesis")
    inner = text[1:-1] if text.startswith("(") else text
    inner = inner.strip().removesuffix(",")
    whole = f"({inner},)"
    value = _read(whole)
    if value is not UNREAD and (references(value) or has_type(value, hint)):
        return whole
    if item is not str:
        raise NoValue(_wanted(text, hint))
    return f"({', '.join(_value(part.strip(), str) for part in inner.split(','))},)"


def _wanted(text: str, hint: Any) -> str:
    wanted = f"{type_name(hint)} is wanted"
    return f"{text or 'nothing'} is given but {wanted}: {remedy(text, hint)}"


def takes(hint: Any, kind: Any) -> bool:
    """Whether a field accepts a simple type, alone or as one of several."""
    options = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    return hint is kind or kind in options


def item_of(hint: Any) -> Any:
    """The type of the items of a field that takes a tuple; None of one that takes no tuple."""
    options = [hint] if typing.get_origin(hint) is tuple else typing.get_args(hint)
    tuples = [option for option in options if typing.get_origin(option) is tuple]
    return typing.get_args(tuples[0])[0] if tuples else None


def remedy(value: Any, hint: Any) -> str:
    """What to do about a value that has not the type."""
    if isinstance(value, type):
        return f"write @{value.__name__}(), with ()"
    if has_type((value,), hint):
        return f"write ({_item(value)},), with a comma, also for one"
    for other in _near(value):
        if has_type(other, hint):
            return f"write {other!r}"
    if isinstance(value, str) and value in REGISTRY:
        return f"write @{value}()"
    return "write True or False" if takes(hint, bool) else "change that binding"


def _item(value: Any) -> str:
    is_literal = isinstance(value, str | int | float | tuple)
    return repr(value) if is_literal else f"@{type(value).__name__}()"


def _near(value: Any) -> list[Any]:
    """Values that look like a value but have other types."""
    if isinstance(value, list):
        return [tuple(value)]
    if isinstance(value, float) and value.is_integer():
        return [int(value)]
    if not isinstance(value, str):
        return []
    words = {"true": True, "false": False, "none": None}
    return [words[value.lower()]] if value.lower() in words else _numbers(value)


def _numbers(text: str) -> list[Any]:
    found: list[Any] = []
    for kind in (int, float):
        try:
            found.append(kind(text))
        except ValueError:
            continue
    return found
