"""What a gin file says, with all that it includes, as data and as text."""

from typing import NamedTuple

from hyla_lm.config.paths import everything, find
from hyla_lm.config.syntax import LOCK, BindingStatement, ImportStatement, IncludeStatement


class Line(NamedTuple):
    """A macro or a setting, its value as gin writes it, and the file that has the last word."""

    name: str
    value: str
    file: str


class Contents(NamedTuple):
    """The comment at the top of a gin file, what it includes and imports, and what it sets."""

    file: str
    comment: str
    includes: tuple[str, ...]
    imports: tuple[str, ...]
    macros: tuple[Line, ...]
    settings: tuple[Line, ...]


def contents(file: str) -> Contents:
    """Reads a gin file, without importing what it imports."""
    with open(find(file), encoding="utf-8") as opened:
        comment = _comment(opened.read())
    macros: dict[str, Line] = {}
    settings: dict[str, Line] = {}
    includes, imports = [], []
    with LOCK:
        found = list(everything(file))
    for path, statement in found:
        if isinstance(statement, IncludeStatement):
            includes.append(statement.filename)
        elif isinstance(statement, ImportStatement):
            imports.append(statement.module)
        elif isinstance(statement, BindingStatement):
            name = _name(statement)
            lines = settings if statement.arg_name else macros
            lines[name] = Line(name, repr(statement.value), path)
    parts = (tuple(includes), tuple(imports), tuple(macros.values()), tuple(settings.values()))
    return Contents(file, comment, *parts)


def text(found: Contents) -> str:
    """The contents for people; a line of an included file names it."""
    lines = [found.file, *(f"  {line}" for line in found.comment.splitlines())]
    lines += [f"  includes {path}" for path in found.includes]
    lines += [f"  imports {module}" for module in found.imports]
    if found.macros:
        lines += ["", "Macros; --gin.NAME=value changes all settings that use one:"]
        lines += [_line(found.file, line) for line in found.macros]
    lines += ["", "Settings; --gin.Class.field=value changes one:"]
    lines += [_line(found.file, line) for line in found.settings]
    return "\n".join(lines)


def _name(statement: BindingStatement) -> str:
    scope = f"{statement.scope}/" if statement.scope else ""
    field = f".{statement.arg_name}" if statement.arg_name else ""
    return f"{scope}{statement.selector}{field}"


def _line(file: str, line: Line) -> str:
    origin = "" if line.file == file else f"  # {line.file}"
    return f"  {line.name} = {line.value}{origin}"


def _comment(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return "\n".join(lines)
