"""Where gin files are: a path from here, or else a file that comes with the package."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from hyla_lm.config.suggestions import did_you_mean
from hyla_lm.config.syntax import (
    GIN_ERRORS,
    LOCK,
    BindingStatement,
    ImportStatement,
    IncludeStatement,
    Statement,
    statements,
)
from hyla_lm.errors import UserError, printable
from hyla_lm.package import folder

FOLDER = "gin"
FIRST = "gin/quickstart.gin"


def find(path: str, given_as: str = "--gin_file=") -> str:
    """The path of a gin file; raises UserError with the nearest name if there is none."""
    given = given_as + printable(path)
    for candidate in (Path(path), folder(FOLDER).parent / path):
        with suppress(OSError, ValueError):
            if candidate.is_file():
                return str(candidate)
            if candidate.is_dir():
                raise UserError(f"{given} is a folder: give a gin file in it.")
    meant = did_you_mean(path, known()) or did_you_mean(f"{FOLDER}/{path}", known())
    raise UserError(
        f"{given} does not exist"
        f"{meant or ': give the path of a gin file, from here or of the package.'}"
    )


def known() -> list[str]:
    """The gin files of the package, the first to try first, and those under ./gin and here."""
    found = [FIRST]
    for root in (folder(FOLDER).parent, Path()):
        paths = sorted((root / FOLDER).rglob("*.gin"))
        found += [path.relative_to(root).as_posix() for path in paths]
    return list(dict.fromkeys([*found, *sorted(path.name for path in Path().glob("*.gin"))]))


def choice() -> str:
    """The known gin files for a sentence: those of folders below gin/ as their folders."""
    every = known()
    files = [path for path in every if path.count("/") < 2]
    folders = dict.fromkeys(os.path.dirname(path) for path in every if path.count("/") > 1)
    return f"{', '.join(files)} or one in {', '.join(folders)}"


def everything(path: str) -> Iterator[tuple[str, Statement]]:
    """The statements of a gin file, with its path, and of what it includes, in their order.

    Raises UserError for a file that is not there, one of GIN_ERRORS for text that is not gin.
    """
    yield from _everything(path, find(path), (path,))


def _everything(path: str, found: str, outer: tuple[str, ...]) -> Iterator[tuple[str, Statement]]:
    with open(found, encoding="utf-8") as file:
        for statement in statements(file):
            yield path, statement
            if isinstance(statement, IncludeStatement) and statement.filename not in outer:
                inner = statement.filename
                yield from _everything(inner, find(inner, "include "), (*outer, inner))


def setting(name: str, without: str = "") -> list[str]:
    """The known gin files that set one setting, but for those that also set another."""
    return [path for path in known() if name in (found := names(path)) and without not in found]


def names(path: str) -> set[str]:
    """The settings, as Class.field, that a file and its includes set; none if it is not gin."""
    with LOCK, suppress(UserError, *GIN_ERRORS):
        found = [one for _, one in everything(path) if isinstance(one, BindingStatement)]
        return {f"{one.selector.rpartition('.')[2]}.{one.arg_name}" for one in found}
    return set()


def let_import(found: Iterable[Statement]) -> None:
    """Lets Python find the modules of the current folder that statements import.

    The folder comes last in Python's path, so that it hides no module, and only where it has one.
    """
    for statement in found:
        if isinstance(statement, ImportStatement):
            _let_import(statement.module.partition(".")[0])


def _let_import(module: str) -> None:
    here = Path.cwd()
    is_here = (here / f"{module}.py").is_file() or (here / module).is_dir()
    if is_here and not {"", str(here)} & set(sys.path):
        sys.path.append(os.fspath(here))
