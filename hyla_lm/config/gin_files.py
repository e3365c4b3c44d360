"""Reads gin files and bindings into values; gin's global state is empty before and after.

Files and bindings become one table of settings. It is checked here, where a mistake has its file
and line, and handed to gin, which builds the classes and writes the text of what was used.
"""

import dataclasses
import glob
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import gin

from hyla_lm.config.bindings import as_line
from hyla_lm.config.declare import REGISTRY
from hyla_lm.config.gin_text import (
    BINDING,
    BindingStatement,
    ImportStatement,
    IncludeStatement,
    Key,
    Reference,
    Statement,
    first_line,
    key_of,
    references,
    statements,
    statements_of_file,
    with_includes,
)
from hyla_lm.config.settings import homes
from hyla_lm.errors import UserError, did_you_mean, nearest, printable
from hyla_lm.package import PACKAGE


@dataclass(frozen=True)
class Written:
    """The gin text that a run saved, and the path of its file.

    Whoever wrote it may import modules of this project, and others only if it `is_trusted`. It was
    read in `folder`: what its relative paths name is looked for there, and then here.
    """

    path: str
    text: str
    is_trusted: bool = False
    folder: str = ""


GinFile = str | Written


@dataclass
class _Source:
    """What a file or a binding says: values by key, and every class that it ever refers to."""

    name: str
    imports: list[str] = field(default_factory=list)
    values: dict[Key, Any] = field(default_factory=dict)
    used: set[tuple[str, str]] = field(default_factory=set)


def read(
    gin_files: Sequence[GinFile], bindings: Sequence[str], *classes: type
) -> tuple[tuple[Any, ...], str]:
    """Builds the classes from gin files, in any order, and bindings; later bindings win.

    Returns the instances, and gin text that rebuilds them. gin has one state, so that one thread
    reads at a time. Raises UserError for a setting that is unknown, has the wrong type, is set by
    two files or is used by nothing.
    """
    files, lines = parse(gin_files, bindings)
    imports = dict.fromkeys(module for source in (*files, *lines) for module in source.imports)
    values = _merged((*files, *lines))
    text_lines = [f"import {module}" for module in imports]
    text_lines += [f"{key} = {value!r}" for key, value in values.items()]
    gin.clear_config()
    try:
        gin.parse_config("\n".join(text_lines))
        built = tuple(gin.get_configurable(cls)() for cls in classes)
        text = gin.operative_config_str()
    except UserError as error:
        raise UserError(str(error).splitlines()[0]) from None  # gin adds where it was building
    except Exception as error:
        raise UserError(f"These settings cannot be built: {first_line(error)}.") from error
    finally:
        gin.clear_config()
    used = {(key.scope, key.name) for key in settings_of_text(text, "")}
    _reject_unbuilt(values, files, used)
    return built, text


def settings_of_text(text: str, path: str) -> dict[Key, Any]:
    """The settings in a text, with References for what they name; raises UserError."""
    parsed = [statement for _, statement in statements(path, text)]
    return {key_of(s): s.value for s in parsed if isinstance(s, BindingStatement)}


def read_settings(text: str, path: str) -> dict[str, str]:
    """The settings of a run's config.gin as Class.field, macros resolved; nothing is imported."""
    settings = settings_of_text(text, path)
    macros = {key.name: value for key, value in settings.items() if not key.field}
    return {
        str(key): repr(_resolved(value, macros)) for key, value in settings.items() if key.field
    }


def _resolved(value: Any, macros: Mapping[str, Any]) -> Any:
    if isinstance(value, Reference):
        return _resolved(macros[value.name], macros) if value.name in macros else value
    if isinstance(value, tuple | list):
        return type(value)(_resolved(one, macros) for one in value)
    return value


def value_of(settings: Mapping[str, str], name: str) -> str:
    """A setting as gin writes it; one that is not written has its default, where that is known."""
    if name in settings:
        return settings[name]
    cls, _, field = name.rpartition("/")[2].rpartition(".")
    own = dataclasses.fields(typing.cast(Any, REGISTRY[cls])) if cls in REGISTRY else ()
    return next((repr(one.default) for one in own if one.name == field), "not set")


def parse(
    gin_files: Sequence[GinFile], bindings: Sequence[str]
) -> tuple[list[_Source], list[_Source]]:
    """Imports what gin files and bindings import, and collects what they set; builds nothing."""
    files = [_of_file(file) for file in gin_files]
    _reject_conflicts(files)
    lines = []
    for binding in bindings:  # a binding may have a type that an earlier one imports
        name = BINDING + printable(binding)
        lines.append(_source(name, with_includes(name, as_line(binding))))
    _reject_unused_macros(_merged((*files, *lines)))
    return files, lines


def _of_file(file: GinFile) -> _Source:
    if isinstance(file, str):
        return _source(file, statements_of_file(file))
    parsed = list(statements(file.path, file.text))
    for _, statement in parsed:
        if isinstance(statement, IncludeStatement):
            raise UserError(f"{file.path} includes {statement.filename!r}, which no run writes.")
        if isinstance(statement, ImportStatement) and not file.is_trusted:
            first, *rest = statement.module.split(".")
            if first != PACKAGE.name or any(part.startswith("__") for part in rest):
                what = f"imports {statement.module}, which is no module of this project"
                raise _distrust(file, what)
    source = _source(file.path, parsed, file.folder)
    for key, value in source.values.items():
        if value != () and _is_marked(key, "imports") and not file.is_trusted:
            raise _distrust(file, f"sets {key.name}.{key.field}, which imports modules")
    if file.folder not in ("", str(Path.cwd())):
        source.values |= _moved(source.values, file.folder)
    return source


def _is_marked(key: Key, mark: str) -> bool:
    """Whether the field has a mark in its metadata, `imports` or `path`; macros have none."""
    fields = dataclasses.fields(typing.cast(Any, REGISTRY[key.name])) if key.field else ()
    return any(one.name == key.field and one.metadata.get(mark) for one in fields)


def _moved(values: Mapping[Key, Any], folder: str) -> dict[Key, Any]:
    """The settings and macros with paths from this folder, absolute where something is there."""
    paths = {key: value for key, value in values.items() if _is_marked(key, "path")}
    macros = {one.name for one in references(list(paths.values()))}
    paths |= {key: values[key] for key in values if not key.field and key.name in macros}
    return {key: _absolute(value, folder) for key, value in paths.items()}


def _absolute(value: Any, folder: str) -> Any:
    """A path, a `name=path` or several of them; what is not there stays."""
    if isinstance(value, tuple) and not isinstance(value, Reference):
        return tuple(_absolute(one, folder) for one in value)
    if not isinstance(value, str):
        return value
    name, equals, path = value.rpartition("=")
    return f"{name}{equals}{Path(folder, path)}" if glob.glob(path, root_dir=folder) else value


def _distrust(file: Written, what: str) -> UserError:
    return UserError(f"{file.path} {what}: set trust_imports if you trust whoever wrote it.")


def _source(name: str, parsed: Iterable[tuple[str, Statement]], folder: str = "") -> _Source:
    """Imports what statements import, then checks and collects what they set."""
    parsed, source = list(parsed), _Source(name)
    for where, statement in parsed:
        if isinstance(statement, ImportStatement):
            _import(where, statement.module, folder)
            source.imports.append(statement.module)
    for where, statement in parsed:
        wrong = _wrong_name(statement)
        if wrong:
            raise UserError(f"{where}: {wrong}{'' if wrong.endswith('?') else '.'}")
        if isinstance(statement, BindingStatement):
            source.values[key_of(statement)] = statement.value
            source.used |= set(_used([statement.value]))
    return source


def _import(where: str, module: str, folder: str) -> None:
    """Imports a module, also one of the current folder, or of the folder of a run's config.gin.

    That comes last in Python's path, so that it hides no module, and only where it has this one.
    """
    first = module.partition(".")[0]
    for here in (Path.cwd(), Path(folder).absolute()):
        is_here = (here / f"{first}.py").is_file() or (here / first).is_dir()
        if is_here and not {"", str(here)} & set(sys.path):
            sys.path.append(str(here))
    try:
        import_module(module)
    except Exception as error:
        raise UserError(f"{where}: {module} cannot be imported: {first_line(error)}.") from error


def _wrong_name(statement: Statement) -> str:
    """What is wrong with the names in a statement; empty if nothing is."""
    if not isinstance(statement, BindingStatement):
        return ""
    if statement.arg_name:
        name = key_of(statement).name
        wrong = _wrong_class(name)
        if wrong or statement.arg_name not in _fields_of(name):
            return wrong or _wrong_field(name, statement.arg_name)
    classes = [one.name for one in references(statement.value) if one.text.startswith("@")]
    return next((wrong for wrong in map(_wrong_class, classes) if wrong), "")


def _wrong_class(selector: str) -> str:
    name = selector.rpartition("/")[2].rpartition(".")[2]
    if name in REGISTRY:
        return ""
    if name in homes():
        return f"{name} is unknown before its module is imported: add a line import {homes()[name]}"
    return f"there is no class {name!r}{did_you_mean(name, {*REGISTRY, *homes()})}"


def _wrong_field(name: str, field: str) -> str:
    own = nearest(field, _fields_of(name))
    meant = f"{name}.{own}" if own else setting_like(field)
    ending = f"; did you mean {meant}?" if meant else f"; hyla-lm describe {name} lists them"
    return f"{name} has no setting {field!r}{ending}"


def setting_like(field: str) -> str:
    """The setting of any known class with this name, or a like one; empty if there is none."""
    owners = {own: name for name in reversed(REGISTRY) for own in _fields_of(name)}
    own = nearest(field, owners)
    return f"{owners[own]}.{own}" if own else ""


def _fields_of(name: str) -> list[str]:
    return [field.name for field in dataclasses.fields(typing.cast(Any, REGISTRY[name]))]


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
        like = setting_like(name) or f"Class.{name}"
        raise UserError(
            f"{name} = … sets a macro that nothing uses: write {like} = … for a setting, or "
            "remove it."
        )
    for name in sorted(used - defined):
        raise UserError(f"%{name} is used but never set: add a line {name} = VALUE.")


def _reject_unbuilt(
    values: Mapping[Key, Any], files: Sequence[_Source], built: set[tuple[str, str]]
) -> None:
    """Raises UserError for settings of classes that are not built.

    A file may set a class that it uses itself, and a later line may then use another instead.
    """
    in_files = _merged(files)
    used_by_files = set(_used(in_files.values())).union(*(source.used for source in files))
    for key, value in values.items():
        is_replaced = _applies(key, used_by_files) and in_files.get(key, not value) == value
        if key.field and not _applies(key, built) and not is_replaced:
            raise UserError(
                f"{key} is set but nothing builds {key.configurable}: bind a setting to "
                f"@{key.configurable}(), add a gin file that does, or remove it."
            )


def _applies(key: Key, classes: Iterable[tuple[str, str]]) -> bool:
    """Whether a setting applies to one of these (scope, class) pairs."""
    return any(
        name == key.name and (not key.scope or f"{scope}/".startswith(f"{key.scope}/"))
        for scope, name in classes
    )


def _used(values: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The classes, with scopes, that values refer to."""
    for reference in references(list(values)):
        if reference.text.startswith("@"):
            scope, _, name = reference.name.rpartition("/")
            yield scope, name.rpartition(".")[2]


def _merged(sources: Iterable[_Source]) -> dict[Key, Any]:
    """The values of several sources, of which later ones win."""
    return {key: value for source in sources for key, value in source.values.items()}
