"""Configuration: frozen dataclasses that gin binds, with checked types and documented fields."""

import dataclasses
import functools
import inspect
import math
import tokenize
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gin

T = TypeVar("T")
PARSE_ERRORS = (
    *(ValueError, SyntaxError, TypeError, ImportError, OSError, AttributeError),
    tokenize.TokenError,
)
REGISTRY: dict[str, type] = {}
CHECKOUT = Path(__file__).parents[1]
gin.add_config_file_search_path(str(CHECKOUT))


class UserError(Exception):
    """A mistake the user can mend: one sentence that names the binding or file to change."""


class Unavailable(UserError):
    """Something outside does not answer, after many tries; later the same command may go on."""


def exit_status(error: UserError) -> int:
    """2, or EX_UNAVAILABLE where the same command may go on later."""
    return 69 if isinstance(error, Unavailable) else 2


def setting(
    default: Any, doc: str, *, choices: Sequence[Any] | None = None, minimum: float | None = None
) -> Any:
    """A documented dataclass field; `choices` and `minimum` are checked on construction."""
    return dataclasses.field(
        default=default, metadata={"doc": doc, "choices": choices, "minimum": minimum}
    )


def configurable(cls: type[T]) -> type[T]:
    """Registers a frozen dataclass of `setting`s with gin; construction checks every field."""
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
    return gin.configurable(cls)


def check_fields(config: Any) -> None:
    """Raises UserError for a field of the wrong type, outside its choices or below its minimum."""
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, binding = getattr(config, field.name), f"{type(config).__name__}.{field.name}"
        if not _has_type(value, hints[field.name]):
            wanted = _type_name(hints[field.name])
            raise UserError(f"{binding} = {value!r} must be {wanted}: change that binding.")
        choices, minimum = field.metadata.get("choices"), field.metadata.get("minimum")
        if choices is not None and value not in choices:
            allowed = ", ".join(repr(choice) for choice in choices)
            raise UserError(f"{binding} = {value!r} must be one of {allowed}.")
        if minimum is not None and value is not None and value < minimum:
            raise UserError(f"{binding} = {value!r} must be at least {minimum}.")


def _has_type(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_has_type(value, option) for option in typing.get_args(hint))
    if origin is tuple:
        item = typing.get_args(hint)[0]
        return isinstance(value, tuple) and all(_has_type(entry, item) for entry in value)
    if hint is Any:
        return True
    if hint is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) and not isinstance(value, type)


def _type_name(hint: Any) -> str:
    if typing.get_origin(hint) is None and isinstance(hint, type):
        return "None" if hint is type(None) else hint.__name__
    return str(hint).replace("typing.", "")


def load(gin_files: Sequence[str], bindings: Sequence[str]) -> None:
    """Parses gin files, then bindings; raises UserError for anything unknown or unused."""
    gin.clear_config()
    for name in gin_files:
        if not Path(name).is_file():
            raise UserError(f"--gin_file={name} does not exist: give the path of a gin file.")
        _parse(gin.parse_config_file, name, name)
    for binding in bindings:
        _parse(gin.parse_config, binding, f"--gin.{binding}")
    _reject_unused_macros()


def _parse(parse: Callable[[str], Any], argument: str, where: str) -> None:
    try:
        parse(argument)
    except UserError:
        raise
    except PARSE_ERRORS as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        known = "" if "matching" not in reason else f" (known: {', '.join(sorted(REGISTRY))})"
        raise UserError(f"{where}: {reason}{known}; correct that binding.") from error


def _reject_unused_macros() -> None:
    config = gin.config._CONFIG
    defined = {scope for scope, selector in config if selector == "gin.macro"}
    used = {
        reference.scopes[-1]
        for reference in gin.config.iterate_references(config)
        if reference.selector == "gin.macro"
    }
    for name in sorted(defined - used):
        raise UserError(
            f"{name} = … sets a macro that nothing uses: "
            f"write Class.{name} = … for a binding, or remove the line."
        )
    for name in sorted(used - defined):
        raise UserError(f"%{name} is used but never set: add a line {name} = …")


def build(cls: type[T]) -> T:
    """Makes the dataclass that the loaded gin configuration describes."""
    try:
        return cls()
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None
    except (TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{cls.__name__} cannot be built: {reason}.") from error


def operative() -> str:
    """The bindings and defaults in use; parsing them again gives equal dataclasses."""
    return gin.operative_config_str()


def as_dict(config: Any) -> dict[str, Any]:
    """A nested, JSON-ready dict of a dataclass, with the class name under `class`."""
    fields = {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}
    return {"class": type(config).__name__, **fields}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def describe() -> str:
    """Every bindable field with its type, default and doc line."""
    lines = []
    for name, cls in sorted(REGISTRY.items()):
        lines.append(f"{name}: {(inspect.getdoc(cls) or '').splitlines()[0]}")
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(typing.cast(Any, cls)):
            kind, doc = _type_name(hints[field.name]), field.metadata.get("doc", "")
            default = "(required)" if field.default is dataclasses.MISSING else repr(field.default)
            choices = field.metadata.get("choices")
            options = f" [{', '.join(map(str, choices))}]" if choices else ""
            lines.append(f"  {name}.{field.name}: {kind} = {default}\n      {doc}{options}")
        lines.append("")
    return "\n".join(lines)
