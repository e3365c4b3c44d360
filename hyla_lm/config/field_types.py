"""The types of settings: whether a value has one, and what people call it."""

import math
import re
import types
import typing
from typing import Any

MODULES = re.compile(r"(?:\w+\.)+(?=\w)")


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value has the annotated type of a field."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(has_type(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(has_type(entry, item) for entry in value)
    if hint is Any:
        return True
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) and not isinstance(value, type)


def type_name(hint: Any) -> str:
    """A type as people write it."""
    if typing.get_origin(hint) is None and isinstance(hint, type):
        return "None" if hint is type(None) else hint.__name__
    return MODULES.sub("", str(hint))
