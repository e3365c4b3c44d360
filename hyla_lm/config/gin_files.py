"""Reads gin files and bindings into values; gin's global state is empty before and after.

Files and bindings become one table of settings. It is checked here, where a mistake has its file
and line, and handed to gin, which builds the classes and writes the text of what was used.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gin

from hyla_lm.config import mistakes
from hyla_lm.config.bindings import as_line, remedy
from hyla_lm.config.declare import REGISTRY, WrongType
from hyla_lm.config.gin_text import (
    GIN_ERRORS,
    BindingStatement,
    ImportStatement,
    IncludeStatement,
    Key,
    Statement,
    key_of,
    references,
    statements,
    statements_of_file,
    with_includes,
)
from hyla_lm.config.settings import importing_fields, uses_of
from hyla_lm.errors import UserError, did_you_mean, printable
from hyla_lm.package import PACKAGE

# Threads read one after the other: gin has one state, and CPython's parser is not safe in threads.
LOCK = threading.Lock()


@dataclass(frozen=True)
class Written:
    """The gin text that a run saved, and the path of its file.

    Whoever wrote it may import modules of this project, and others only if it `is_trusted`.
    """

    path: str
    text: str
    is_trusted: bool = False

    def __str__(self) -> str:
        return self.path


GinFile = str | Written


@dataclass(frozen=True)
class Configuration:
    """Instances of the requested classes, and gin text that rebuilds them."""

    values: tuple[Any, ...]
    text: str


@dataclass
class _Source:
    """What a file or a binding says: values by key, and every class that it ever refers to."""

    name: GinFile
    imports: list[str] = field(default_factory=list)
    values: dict[Key, Any] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)


def read(gin_files: Sequence[GinFile], bindings: Sequence[str], *classes: type) -> Configuration:
    """Builds the classes from gin files, in any order, and bindings; later bindings win.

    Raises UserError for a setting that is unknown, has the wrong type, is set by two files or is
    used by nothing.
    """
    with LOCK:
        files, lines = _sources(gin_files, bindings)
        imports = dict.fromkeys(module for source in (*files, *lines) for module in source.imports)
        values = _merged((*files, *lines))
        gin.clear_config()
        try:
            gin.parse_config("\n".join((*(f"import {module}" for module in imports), *_as(values))))
            built = tuple(_build(cls) for cls in classes)
            text = gin.operative_config_str()
        finally:
            gin.clear_config()
    _reject_unbuilt(values, files, classes)
    return Configuration(built, text)


def check(gin_files: Sequence[GinFile], bindings: Sequence[str]) -> None:
    """Imports what gin files import; raises UserError as `read` does, but builds nothing."""
    with LOCK:
        _sources(gin_files, bindings)


def settings_of_text(text: str) -> dict[Key, Any]:
    """The settings in a text, with References for what they name; raises one of GIN_ERRORS."""
    with LOCK:
        parsed = [s for s in statements(text) if isinstance(s, BindingStatement)]
    return {key_of(statement): statement.value for statement in parsed}


def _sources(
    gin_files: Sequence[GinFile], bindings: Sequence[str]
) -> tuple[list[_Source], list[_Source]]:
    files = [_of_file(file) for file in gin_files]
    _reject_conflicts(files)
    lines = [_of_binding(binding) for binding in bindings]
    _reject_unused_macros(_merged((*files, *lines)))
    return files, lines


def _of_file(file: GinFile) -> _Source:
    if isinstance(file, str):
        return _source(file, mistakes.located(file, statements_of_file(file)))
    try:
        if not file.is_trusted:
            _reject_untrusted(file, statements(file.text))
        source = _source(file, with_includes("", file.text))
    except GIN_ERRORS as error:
        raise _of_another_version(file, mistakes.first_line(error)) from error
    if not file.is_trusted:
        _reject_importing_fields(file, source.values)
    return source


def _of_binding(binding: str) -> _Source:
    line, name = as_line(binding), f"--gin.{printable(binding)}"
    try:
        return _source(name, with_includes("", line))
    except GIN_ERRORS as error:
        reason = mistakes.first_line(error).rstrip(".")
        raise UserError(f"{name}: {reason}; correct that binding.") from error


def _source(name: GinFile, parsed: Iterable[tuple[str, Statement]]) -> _Source:
    """Imports what statements import, then checks and collects what they set.

    Each statement comes with the file that it is in, or with "" where `name` says it all.
    """
    parsed, source = list(parsed), _Source(name)
    for path, statement in parsed:
        if isinstance(statement, ImportStatement):
            _import(name, path, statement)
            source.imports.append(statement.module)
    for path, statement in parsed:
        sentence = mistakes.of_statement(statement)
        if sentence and isinstance(name, Written):
            raise _of_another_version(name, sentence)
        if sentence:
            where = f"{path}:{statement.location.line_num}" if path else str(name)
            raise UserError(f"{where}: {sentence}{'' if sentence.endswith('?') else '.'}")
        if isinstance(statement, BindingStatement):
            source.values[key_of(statement)] = statement.value
            source.used |= set(_used([statement.value]))
    return source


def _import(name: GinFile, path: str, statement: ImportStatement) -> None:
    _let_import(statement.module.partition(".")[0])
    try:
        gin.parse_config(f"import {statement.module}")
    except UserError as error:
        raise UserError(mistakes.first_line(error)) from error
    except GIN_ERRORS as error:
        reason = mistakes.first_line(error).rstrip(".")
        if isinstance(name, Written):
            raise _of_another_version(name, reason) from error
        remedy = "correct that file" if path else "correct that binding"
        raise UserError(f"{path or name}: {reason}; {remedy}.") from error
    finally:
        gin.clear_config()


def _let_import(module: str) -> None:
    """Lets Python find a module of the current folder.

    The folder comes last in Python's path, so that it hides no module, and only where it has one.
    """
    here = Path.cwd()
    is_here = (here / f"{module}.py").is_file() or (here / module).is_dir()
    if is_here and not {"", str(here)} & set(sys.path):
        sys.path.append(os.fspath(here))


def _of_another_version(file: Written, reason: str) -> UserError:
    return UserError(
        f"{file}: {reason.rstrip('.')}; it was written by another version of hyla_lm, "
        "so give --gin_file."
    )


def _reject_untrusted(file: Written, parsed: Iterable[Statement]) -> None:
    """Raises UserError for text that could run code of others than this project."""
    for statement in parsed:
        if isinstance(statement, ImportStatement):
            first, *rest = statement.module.split(".")
            if first != PACKAGE.name or any(part.startswith("__") for part in rest):
                what = f"imports {statement.module}, which is no module of this project"
                raise _distrust(file, what)
        if isinstance(statement, IncludeStatement):
            raise _distrust(file, f"includes {statement.filename!r}, which no run writes")


def _reject_importing_fields(file: Written, values: Mapping[Key, Any]) -> None:
    for key, value in values.items():
        if value != importing_fields(key.name).get(key.field, value):
            raise _distrust(file, f"sets {key.name}.{key.field}, which imports modules")


def _distrust(file: Written, what: str) -> UserError:
    return UserError(
        f"{file} {what}: give evaluate or sample --trust_imports if you trust whoever wrote it."
    )


def _reject_conflicts(files: Iterable[_Source]) -> None:
    """Raises UserError if two files set a parameter to different values."""
    known: dict[Key, _Source] = {}
    for source in files:
        for key, value in source.values.items():
            first = known.setdefault(key, source)
            if value != first.values[key]:
                raise UserError(
                    f"{first.name} sets {key} = {first.values[key]!r} and {source.name} sets it to "
                    f"{value!r}: leave one out; a --gin binding or a file that includes the other "
                    "may change it."
                )


def _reject_unused_macros(values: Mapping[Key, Any]) -> None:
    defined = {key.name for key in values if not key.field}
    used = {one.name for one in references(list(values.values())) if one.text.startswith("%")}
    for name in sorted(defined - used):
        like = mistakes.setting_like(name) or f"Class.{name}"
        meant = did_you_mean(name, used) or f": write {like} = … for a setting, or remove it."
        raise UserError(f"{name} = … sets a macro that nothing uses{meant}")
    for name in sorted(used - defined):
        meant = did_you_mean(f"%{name}", [f"%{one}" for one in defined])
        raise UserError(f"%{name} is used but never set{meant or f': add a line {name} = VALUE.'}")


def _reject_unbuilt(
    values: Mapping[Key, Any], files: Sequence[_Source], classes: Iterable[type]
) -> None:
    """Raises UserError for settings of classes that are not built.

    A file may set a class that it uses itself, and a later line may then use another instead.
    """
    built = set(_reached([("", cls.__name__) for cls in classes], values))
    in_files = _merged(files)
    used_by_files = set(_used(in_files.values())).union(*(source.used for source in files))
    for key, value in values.items():
        is_replaced = _applies(key, used_by_files) and in_files.get(key, not value) == value
        if key.field and not _applies(key, built) and not is_replaced:
            name = key.configurable
            uses = [f"bind {use}" for use in uses_of(name)] or [f"nothing here uses {name}"]
            raise UserError(
                f"{key} is set but nothing builds {name}: {', or '.join(uses)}, or remove it."
            )


def _reached(
    waiting: list[tuple[str, str]], values: Mapping[Key, Any]
) -> Iterator[tuple[str, str]]:
    """The classes, with the scopes that they are built in, that building some classes builds."""
    known = set(waiting)
    macros = {key.name: value for key, value in values.items() if not key.field}
    while waiting:
        one = waiting.pop()
        yield one
        own = [value for key, value in values.items() if key.field and _applies(key, {one})]
        for inner_scope, inner in _used(own, macros):
            reached = (inner_scope or one[0], inner)
            if reached not in known:
                known.add(reached)
                waiting.append(reached)


def _applies(key: Key, classes: Iterable[tuple[str, str]]) -> bool:
    """Whether a setting applies to one of these (scope, class) pairs."""
    return any(
        name == key.name and (not key.scope or f"{scope}/".startswith(f"{key.scope}/"))
        for scope, name in classes
    )


def _used(
    values: Iterable[Any], macros: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str]]:
    """The classes, with scopes, that values refer to, and those that their macros refer to."""
    for reference in references(list(values)):
        if reference.text.startswith("%"):
            yield from _used([(macros or {}).get(reference.name)], macros)
        else:
            scope, _, name = reference.name.rpartition("/")
            yield scope, name.rpartition(".")[2]


def _merged(sources: Iterable[_Source]) -> dict[Key, Any]:
    """The values of several sources, of which later ones win."""
    return {key: value for source in sources for key, value in source.values.items()}


def _as(values: Mapping[Key, Any]) -> Iterator[str]:
    """The values as lines of gin."""
    for key, value in values.items():
        module = REGISTRY[key.name].__module__ + "." if key.field else ""
        scope = f"{key.scope}/" if key.scope else ""
        yield (
            f"{scope}{module}{key.name}.{key.field} = {value!r}"
            if key.field
            else (f"{key.name} = {value!r}")
        )


def _build(cls: type) -> Any:
    try:
        return gin.get_configurable(cls)()
    except WrongType as error:
        said = mistakes.first_line(error)  # gin adds where it was building
        raise UserError(printable(f"{said}: {remedy(error.value, error.hint)}.")) from None
    except UserError as error:
        raise UserError(mistakes.first_line(error)) from None
    except GIN_ERRORS as error:
        reason = mistakes.first_line(error)
        raise UserError(f"{cls.__name__} cannot be built: {reason}.") from error
