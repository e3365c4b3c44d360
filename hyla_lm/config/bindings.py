"""Bindings of the command line as lines of gin: strings and paths need no quotes there.

A text is read as gin reads it where that is of the field's type, or else as the first of some other
readings that is. A macro has no type and takes any text.
"""

import re
import typing
from collections.abc import Iterator
from typing import Any

from hyla_lm.config.declare import REGISTRY, has_type, type_name
from hyla_lm.config.gin_text import references, value_of
from hyla_lm.errors import UserError, printable

KEY = re.compile(r"[\w./%]+")


def as_line(binding: str) -> str:
    """The line of gin that a binding of the command line means; raises UserError."""
    key, equals, text = (part.strip() for part in binding.partition("="))
    if not equals or not KEY.fullmatch(key):
        return binding
    hint = _hint(key)
    for reading in _readings(text, hint):
        try:
            value = value_of(reading)
        except ValueError:
            continue
        if references(value) or has_type(value, hint):
            return f"{key} = {reading}"
    given = f"{text or 'nothing'} is given but {type_name(hint)} is wanted"
    remedy = f": write @{text}()" if text in REGISTRY else ""
    raise UserError(printable(f"--gin.{binding}: {given}{remedy}."))


def _hint(key: str) -> Any:
    """The type of the field that a key names; Any for a macro and for what does not exist."""
    name, _, field = key.rpartition("/")[2].rpartition(".")
    cls = REGISTRY.get(name.rpartition(".")[2])
    return typing.get_type_hints(cls).get(field, Any) if cls else Any


def _readings(text: str, hint: Any) -> Iterator[str]:
    """What a text may mean: itself, a text without quotes, a tuple without parentheses or quotes,
    True, False or None in small letters."""
    yield text
    if hint is Any or "," not in text:
        yield repr(text)
    inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
    yield f"({inner.removesuffix(',')},)"
    words = [word.strip().strip("'\"") for word in inner.split(",")]
    yield repr(tuple(word for word in words if word))
    yield repr(text)
    yield text.capitalize()
