"""How to write a value of the type that a setting has, in gin."""

import typing
from typing import Any

from hyla_lm.config.declare import REGISTRY, WrongType
from hyla_lm.config.field_types import has_type


def mended(error: WrongType) -> str:
    """The sentence of a value of another type, with what to write instead."""
    said = str(error).partition("\n")[0]  # gin adds where it was building
    return f"{said}: {remedy(error.value, error.hint)}."


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
