"""Configuration: frozen dataclasses that gin binds, with checked types and documented fields."""

import dataclasses
import functools
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import gin

from hyla_lm.errors import UserError

T = TypeVar("T")
REGISTRY: dict[str, type] = {}
# How the bounds of a number are named in errors, by their names in `setting`.
BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (operator.ge, "at least"),
    "above": (operator.gt, "above"),
    "below": (operator.lt, "below"),
    "maximum": (operator.le, "at most"),
}
LARGEST = 2**31 - 1  # of whole numbers without a bound above: programs count in 32 bits
SMALLEST, GREATEST = 1.2e-38, 3.4e38  # reals of float32; XLA takes smaller ones for 0
_MODULES = re.compile(r"(?:\w+\.)+(?=\w)")


def setting(
    default: Any,
    doc: str,
    *,
    choices: Sequence[Any] | None = None,
    imports: bool = False,
    path: bool = False,
    explained: Mapping[str, str] | None = None,
    **bounds: float,
) -> Any:
    """A documented dataclass field; `choices` and `bounds`, of BOUNDS, are checked on construction.

    A field that names modules to import says so with `imports`, and one that names files or folders
    with `path`. `explained` says in a line what each of some values means, for those who read the
    documentation; it checks nothing.
    """
    metadata = {
        **{"doc": doc, "choices": choices, "imports": imports, "path": path},
        "explained": explained or {},
        "bounds": bounds,
    }
    return dataclasses.field(default=default, metadata=metadata)


def configurable(cls: type[T]) -> type[T]:
    """Registers a frozen dataclass of `setting`s with gin; construction checks every field.

    Only `hyla_lm.config.gin_files` applies bindings; a direct call of the class ignores them.
    """
    own_check: Callable[[Any], None] | None = cls.__dict__.get("check")
    plain_init = cls.__init__

    @functools.wraps(plain_init)
    def checked_init(self: Any, *args: Any, **kwargs: Any) -> None:
        plain_init(self, *args, **kwargs)
        check_fields(self)
        if own_check is not None:
            own_check(self)

    cls.__init__ = checked_init  # type: ignore[method-assign]
    REGISTRY[cls.__name__] = cls
    return gin.register(cls)


def check_fields(config: Any) -> None:
    """Raises UserError for a field of the wrong type, outside its choices or its bounds."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, binding = getattr(config, field.name), f"{type(config).__name__}.{field.name}"
        if not has_type(value, hints[field.name]):
            raise _wrong_type(binding, value, hints[field.name])
        choices, bounds = field.metadata.get("choices"), field.metadata.get("bounds", {})
        is_real = "float" in type_name(hints[field.name])
        if choices is not None and value not in choices:
            raise wrong_choice(f"{binding} = {value!r}", choices)
        numbers = [*filter(is_number, value if isinstance(value, tuple) else (value,))]
        if is_real and not all(one == 0 or SMALLEST <= abs(one) <= GREATEST for one in numbers):
            raise UserError(f"{binding} = {value!r} must be 0 or of a size from 1.2e-38 to 3.4e38.")
        for name, bound in (bounds if is_real else {"maximum": LARGEST} | bounds).items():
            is_within, words = BOUNDS[name]
            if not all(is_within(one, bound) for one in numbers):
                raise UserError(f"{binding} = {value!r} must be {words} {bound}.")


def _wrong_type(binding: str, value: Any, hint: Any) -> UserError:
    """The error of a value of another type; what people forget is a comma, or parentheses."""
    found, remedy = repr(value), ""
    if isinstance(value, type):
        found = f"@{value.__name__}"
        remedy = f": write {found}()"
    elif dataclasses.is_dataclass(value):
        found = f"@{type(value).__name__}()"
    if has_type((value,), hint):
        remedy = f": write ({found},), with a comma, also for one"
    return UserError(f"{binding} = {found} must be {type_name(hint)}{remedy}.")


def wrong_choice(binding: str, choices: Iterable[Any]) -> UserError:
    """The error of a value that is none of the choices."""
    return UserError(f"{binding} must be one of {', '.join(map(repr, choices))}.")


def check_given(config: Any, *names: str) -> None:
    """Raises UserError for the first of these fields that is empty."""
    for name in names:
        if not getattr(config, name):
            raise UserError(f"{type(config).__name__}.{name} is not set: give it.")


def as_dict(config: Any) -> dict[str, Any]:
    """A nested, JSON-ready dict of a dataclass, with the class name under `class`."""
    fields = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"class": type(config).__name__, **fields}


def defaults(kind: type) -> dict[str, Any]:
    """The defaults of a configurable class, as `as_dict` writes them."""
    fields = dataclasses.fields(kind)
    return {f.name: _plain(f.default) for f in fields if f.default is not dataclasses.MISSING}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


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
        return is_number(value)
    if hint is int:
        return is_number(value) and isinstance(value, int)
    return isinstance(value, hint) and not isinstance(value, type)


def is_number(value: Any) -> bool:
    """Whether a value is a number, which a bool is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def type_name(hint: Any) -> str:
    """A type as people write it."""
    if typing.get_origin(hint) is None and isinstance(hint, type):
        return "None" if hint is type(None) else hint.__name__
    return _MODULES.sub("", str(hint))
