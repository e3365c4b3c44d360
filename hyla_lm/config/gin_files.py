"""Reads gin files and bindings into values; gin's global state is empty before and after."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import gin

from hyla_lm.config import mistakes, paths
from hyla_lm.config.bindings import as_line
from hyla_lm.config.declare import WrongType
from hyla_lm.config.remedies import mended
from hyla_lm.config.settings import importing_fields, uses_of
from hyla_lm.config.suggestions import did_you_mean
from hyla_lm.config.syntax import (
    GIN_ERRORS,
    LOCK,
    BindingStatement,
    ImportStatement,
    IncludeStatement,
    statements,
)
from hyla_lm.errors import UserError, printable
from hyla_lm.package import PACKAGE, folder

MACRO = "gin.macro"
gin.add_config_file_search_path(str(folder("gin").parent))
# gin's other reader looks among Python's modules, and logs an error for each file that is none.
del gin.config._FILE_READERS[1:]


@dataclass(frozen=True)
class Written:
    """The gin text that a run saved, and the path of its file.

    Whoever wrote it may import modules of this project, and others only if it `is_trusted`.
    """

    place: str
    text: str
    is_trusted: bool = False

    def __str__(self) -> str:
        return self.place


GinFile = str | Written


@dataclass(frozen=True)
class Configuration:
    """Instances of the requested classes, and gin text that rebuilds them."""

    values: tuple[Any, ...]
    text: str


class _Setting(NamedTuple):
    """The target of a gin line: a parameter of a class in a scope, or a macro."""

    scope: str
    selector: str
    parameter: str

    def __str__(self) -> str:
        return self.scope if self.selector == MACRO else f"{self.configurable}.{self.parameter}"

    @property
    def configurable(self) -> str:
        scope = f"{self.scope}/" if self.scope else ""
        return scope + self.selector.rpartition(".")[2]

    def is_of(self, built: Collection[tuple[str, str]]) -> bool:
        """Whether the setting applies to one of these (scope, class) pairs."""
        return any(
            selector == self.selector
            and (not self.scope or f"{scope}/".startswith(f"{self.scope}/"))
            for scope, selector in built
        )


def read(gin_files: Sequence[GinFile], bindings: Sequence[str], *classes: type) -> Configuration:
    """Builds the classes from gin files, in any order, and bindings; later bindings win.

    Raises UserError for a setting that is unknown, has the wrong type, is set by two files or is
    used by nothing.
    """
    with _parsed(gin_files, bindings):
        values = tuple(_build(cls) for cls in classes)
        text = gin.operative_config_str()
        _reject_unbuilt(gin_files)
    return Configuration(values, text)


def check(gin_files: Sequence[GinFile], bindings: Sequence[str]) -> None:
    """Imports what gin files import; raises UserError as `read` does, but builds nothing."""
    with _parsed(gin_files, bindings):
        pass


@contextmanager
def _parsed(gin_files: Sequence[GinFile], bindings: Sequence[str]) -> Iterator[None]:
    with LOCK:
        gin.clear_config()
        try:
            _parse_files(gin_files)
            for binding in bindings:
                _parse_binding(binding)
            _reject_unused_macros()
            yield
        finally:
            gin.clear_config()


def _parse_files(gin_files: Sequence[GinFile]) -> None:
    """Parses the files; raises UserError if two of them set a parameter to different values."""
    found: dict[_Setting, tuple[GinFile, str]] = {}
    for file in gin_files:
        _parse_file(file)
        for setting, value in _settings().items():
            first, known = found.setdefault(setting, (file, value))
            if value != known:
                raise UserError(
                    f"{first} sets {setting} = {known} and {file} sets it to {value}: leave one "
                    "out; a --gin binding or a file that includes the other may change it."
                )


def _parse_file(file: GinFile) -> None:
    if isinstance(file, Written):
        remedy = "it was written by another version of hyla_lm, so give --gin_file"
        if file.is_trusted:
            _parse(_parse_trusted, file.text, file.place, remedy, _unexplained)
        else:
            _parse(_parse_untrusted, file, file.place, remedy, _unexplained)
    else:
        path = paths.find(file)
        _parse(_parse_path, path, printable(file), "correct that file", mistakes.in_file)


def _parse_binding(binding: str) -> None:
    line, where = as_line(binding), f"--gin.{printable(binding)}"

    def mistake(text: str) -> str:
        found = mistakes.in_line(text)
        return found and f"{where}: {found}"

    _parse(_parse_trusted, line, where, "correct that binding", mistake)


def _parse(
    parse: Callable[[Any], Any],
    argument: Any,
    where: str,
    remedy: str,
    mistake: Callable[[Any], str],
) -> None:
    """Parses; raises UserError that says what the mistake is, or else what gin says."""
    try:
        parse(argument)
    except UserError as error:
        raise UserError(_reason(error)) from error
    except GIN_ERRORS as error:
        reason = _reason(error).rstrip(".")
        found = printable(mistake(argument)) or f"{where}: {reason}; {remedy}"
        raise UserError(found if found.endswith(("?", ".")) else f"{found}.") from error


def _unexplained(_: object) -> str:
    return ""


def _parse_path(path: str) -> None:
    paths.let_import(statement for _, statement in paths.everything(path))
    gin.parse_config_file(path)


def _reason(error: BaseException) -> str:
    """The first line of an error's text, or its kind if it has none."""
    return printable((str(error).strip().splitlines() or [type(error).__name__])[0])


def _parse_trusted(text: str) -> None:
    paths.let_import(statements(text))
    gin.parse_config(text)


def _parse_untrusted(file: Written) -> None:
    """Parses text of anybody; raises UserError before it could run code of anybody."""
    found = list(statements(file.text))
    for statement in found:
        if isinstance(statement, ImportStatement) and not _is_ours(statement.module):
            raise _distrust(file, f"imports {statement.module}, which is no module of this project")
        if isinstance(statement, IncludeStatement):
            raise _distrust(file, f"includes {statement.filename!r}, which no run writes")
    gin.parse_config(file.text)
    for statement in found:
        if isinstance(statement, BindingStatement):
            name, field = statement.selector.rpartition(".")[2], statement.arg_name
            harmless = importing_fields(name)
            if statement.value != harmless.get(field, statement.value):
                raise _distrust(file, f"sets {name}.{field}, which imports modules")


def _is_ours(module: str) -> bool:
    first, *rest = module.split(".")
    return first == PACKAGE.name and not any(part.startswith("__") for part in rest)


def _distrust(file: Written, what: str) -> UserError:
    return UserError(
        f"{file} {what}: give evaluate or sample --trust_imports if you trust whoever wrote it."
    )


def _settings() -> dict[_Setting, str]:
    """Every setting with its value as gin writes it."""
    return {
        _Setting(scope, selector, parameter): repr(value)
        for (scope, selector), bound in gin.config._CONFIG.items()
        for parameter, value in bound.items()
    }


def _build(cls: type) -> Any:
    try:
        return gin.get_configurable(cls)()
    except WrongType as error:
        raise UserError(printable(mended(error))) from None
    except UserError as error:
        raise UserError(_reason(error)) from None
    except GIN_ERRORS as error:
        raise UserError(f"{cls.__name__} cannot be built: {_reason(error)}.") from error


def _reject_unused_macros() -> None:
    defined = {setting.scope for setting in _settings() if setting.selector == MACRO}
    used = {scope for scope, selector in _used_classes() if selector == MACRO}
    for name in sorted(defined - used):
        like = mistakes.setting_like(name) or f"Class.{name}"
        meant = did_you_mean(name, used) or f": write {like} = … for a setting, or remove it."
        raise UserError(f"{name} = … sets a macro that nothing uses{meant}")
    for name in sorted(used - defined):
        meant = did_you_mean(f"%{name}", [f"%{one}" for one in defined])
        raise UserError(f"%{name} is used but never set{meant or f': add a line {name} = VALUE.'}")


def _reject_unbuilt(gin_files: Sequence[GinFile]) -> None:
    """Raises UserError for settings of classes not built. It parses files: call it last."""
    built = gin.config._OPERATIVE_CONFIG.keys()
    unbuilt = {k: v for k, v in _settings().items() if k.selector != MACRO and not k.is_of(built)}
    replaced = _replaceable(gin_files) if unbuilt else {}
    for setting, value in unbuilt.items():
        if replaced.get(setting) != value:
            name = setting.configurable
            uses = [f"bind {use}" for use in uses_of(name)] or [f"nothing here uses {name}"]
            raise UserError(
                f"{setting} is set but nothing builds {name}: {', or '.join(uses)}, or remove it."
            )


def _replaceable(gin_files: Sequence[GinFile]) -> dict[_Setting, str]:
    """Settings for classes that the files themselves use; a later line may use others instead."""
    gin.clear_config()
    _parse_files(gin_files)
    settings = _settings()
    used = _used_classes().union(*(_ever_used(f) for f in gin_files if isinstance(f, str)))
    return {setting: value for setting, value in settings.items() if setting.is_of(used)}


def _ever_used(gin_file: str) -> set[tuple[str, str]]:
    """The classes, with scopes, that a file or its includes use."""
    gin.clear_config()
    parsed = gin.parse_config_file(paths.find(gin_file))
    return _used_classes().union(*(_ever_used(part.filename) for part in parsed.includes))


def _used_classes() -> set[tuple[str, str]]:
    """The classes and macros, with scopes, that bindings refer to."""
    references = gin.config.iterate_references(gin.config._CONFIG)
    return {reference.config_key for reference in references}
