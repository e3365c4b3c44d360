"""The types of settings: whether a value has one, its name, how to mend a value of another."""

import math
import re
import types
import typing
from collections.abc import Collection
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


def takes(hint: Any, kind: Any) -> bool:
    """Whether a field accepts a simple type, alone or as one of several."""
    options = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    return hint is kind or kind in options


def item_of(hint: Any) -> Any:
    """The type of the items of a field that takes a tuple; None of one that takes no tuple."""
    options = [hint] if typing.get_origin(hint) is tuple else typing.get_args(hint)
    tuples = [option for option in options if typing.get_origin(option) is tuple]
    return typing.get_args(tuples[0])[0] if tuples else None


def written(value: Any) -> str:
    """A value as gin writes it; a class stands for a reference to it without ()."""
    return f"@{value.__name__}" if isinstance(value, type) else repr(value)


def remedy(value: Any, hint: Any, classes: Collection[str]) -> str:
    """What to do about a value that has not the type."""
    if isinstance(value, type):
        return f"write @{value.__name__}(), with ()"
    if has_type((value,), hint):
        return f"write ({_item(value)},), with a comma, also for one"
    for other in _near(value):
        if has_type(other, hint):
            return f"write {other!r}"
    if isinstance(value, str) and value in classes:
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
