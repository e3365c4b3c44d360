"""Text files: found in folders, by path or by glob, and divided over independent shards."""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from etils import epath

from hyla_lm.data.row_writer import encoded
from hyla_lm.errors import UserError, printable
from hyla_lm.input.documents import KINDS, TEXT_FIELD, is_text_file, read_texts
from hyla_lm.input.packing import Block
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path, list_files, names_and_sizes, storage_errors


@dataclass(frozen=True)
class TextFiles:
    """Text files in order, of which a shard holds some; `field` is that of the text in each."""

    files: tuple[str, ...]
    field: str = TEXT_FIELD

    @property
    def name(self) -> str:
        first = as_path(self.files[0]).name
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def content(self) -> list[str]:
        """Names and sizes of the files; a preparation only continues with the same ones."""
        fields = [] if self.field == TEXT_FIELD else [f"field {self.field}"]
        return names_and_sizes(self.files) + fields

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        return encoded(self.texts(index, shards), tokenizer)

    def texts(self, index: int = 0, shards: int = 1) -> Iterator[str]:
        """The texts of a shard; by default all of them."""
        count = len(self.files)
        for file in self.files[index * count // shards : (index + 1) * count // shards]:
            yield from read_texts(file, self.field)


def find_text_files(inputs: Sequence[str], without: str = "") -> tuple[str, ...]:
    """The text files of folders, paths and globs, each once, without those in `without`.

    A folder may hold other files, which are counted in a line on standard error. Raises UserError
    for a file of another kind that is named.
    """
    files, others = list[str](), list[str]()
    folders = {_identity(without)} if without else set()
    for given in inputs:
        with storage_errors(f"--input = {given}", "read", "correct the path"):
            is_folder = as_path(given).is_dir()
        for path in map(as_path, [given] if is_folder else list_files([given], "--input")):
            if path.is_dir():
                found = list(_walk(path, folders.copy()))
                files += filter(is_text_file, found)
                others += [name for name in found if not is_text_file(name)]
            elif is_text_file(path.name):
                files.append(str(path))
            else:
                raise UserError(
                    f"--input: {printable(str(path))} is of no known format: give {KINDS}, or a "
                    "folder, whose other files are left out."
                )
    if others:
        print(f"left out, files of other kinds: {len(others):,}", file=sys.stderr)
    if not files:
        raise UserError(f"--input = {' '.join(inputs)} holds no text: give {KINDS}.")
    return tuple(dict.fromkeys(files))


def _walk(folder: epath.Path, entered: set[str]) -> Iterator[str]:
    """The files below a folder, without hidden ones and those of folders that are `entered`."""
    if _identity(folder) in entered:
        return
    entered.add(_identity(folder))
    with storage_errors(f"--input: {folder}", "listed", "change its permissions"):
        entries = sorted(folder.iterdir())
    for path in entries:
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _walk(path, entered)
        else:
            yield str(path)


def _identity(folder: os.PathLike[str] | str) -> str:
    text = str(as_path(folder))
    return text if "://" in text else os.path.realpath(text)
