"""Finds text files: in folders, by name, by glob."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from etils import epath

from hyla_lm.errors import UserError, printable
from hyla_lm.input.documents import KINDS, is_text_file
from hyla_lm.storage import as_path, bucket_errors, list_files

HIDDEN, NO_SUFFIX = "hidden", "without suffix"


@dataclass
class TextFiles:
    """The files found, and how many of other kinds the folders hold, by suffix."""

    files: tuple[str, ...] = ()
    skipped: Counter[str] = field(default_factory=Counter)

    def skipped_line(self) -> str:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.skipped.items()))
        return f"left out, files of other kinds: {counts}"


def find_text_files(inputs: Sequence[str], without: str = "") -> TextFiles:
    """The text files of folders, paths and globs, but for those in the folder `without`.

    A folder may hold other files, which are counted in a line on standard error. Raises UserError
    for a file of another kind that is named, and for one that is found twice.
    """
    found, files = TextFiles(), list[str]()
    folders = {_identity(without)} if without else set()
    for given in inputs:
        for path in map(as_path, _named(given)):
            if path.is_dir():
                files += _walk(path, folders.copy(), found.skipped)
            elif is_text_file(path.name):
                files.append(str(path))
            else:
                raise UserError(
                    f"--input: {printable(str(path))} is of no known format: give {KINDS}, or a "
                    "folder, whose other files are left out."
                )
    if found.skipped:
        print(found.skipped_line(), file=sys.stderr)
    if not files:
        raise UserError(f"--input = {' '.join(inputs)} holds no text: give {KINDS}.")
    repeated = next((file for file, count in Counter(files).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"--input names {repeated} twice: name each file once.")
    found.files = tuple(files)
    return found


def _named(given: str) -> Sequence[str]:
    try:
        with bucket_errors(given):
            is_folder = as_path(given).is_dir()
    except OSError as error:
        raise UserError(f"--input = {given} cannot be read ({error}).") from error
    return [given] if is_folder else list_files([given], "--input")


def _walk(folder: epath.Path, seen: set[str], skipped: Counter[str]) -> Iterator[str]:
    """The text files below a folder; a folder in `seen`, as a link may lead to, is not entered."""
    if _identity(folder) in seen:
        return
    seen.add(_identity(folder))
    try:
        with bucket_errors(folder):
            entries = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"--input: {folder} cannot be listed ({error.strerror or error})."
        ) from error
    for path in entries:
        if path.name.startswith("."):
            skipped[HIDDEN] += 1
        elif path.is_dir():
            yield from _walk(path, seen, skipped)
        elif is_text_file(path.name):
            yield str(path)
        else:
            skipped[path.suffix or NO_SUFFIX] += 1


def _identity(folder: os.PathLike[str] | str) -> str:
    text = str(as_path(folder))
    return text if "://" in text else os.path.realpath(text)
