"""Text files: found in folders, by name or by glob, and divided over independent shards."""

import os
import sys
from collections import Counter
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

    def uses(self, entry: int, index: int, shards: int) -> bool:
        """Whether a shard depends on an entry of `content`; the field, listed last, is of all."""
        return entry == len(self.files) or entry in self._of_shard(index, shards)

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        return encoded(self.texts(index, shards), tokenizer)

    def texts(self, index: int = 0, shards: int = 1) -> Iterator[str]:
        """The texts of a shard; by default all of them."""
        for file in self._of_shard(index, shards):
            yield from read_texts(self.files[file], self.field)

    def _of_shard(self, index: int, shards: int) -> range:
        """The numbers of the files of a shard."""
        count = len(self.files)
        return range(index * count // shards, (index + 1) * count // shards)


def find_text_files(inputs: Sequence[str], without: str = "") -> tuple[str, ...]:
    """The text files of folders, paths and globs, but for those in the folder `without`.

    A folder may hold other files, which are counted in a line on standard error. Raises UserError
    for a file of another kind that is named, and for one that is found twice.
    """
    files, skipped = list[str](), Counter[str]()
    folders = {_identity(without)} if without else set()
    for given in inputs:
        for path in map(as_path, _named(given)):
            if path.is_dir():
                files += _walk(path, folders.copy(), skipped)
            elif is_text_file(path.name):
                files.append(str(path))
            else:
                raise UserError(
                    f"--input: {printable(str(path))} is of no known format: give {KINDS}, or a "
                    "folder, whose other files are left out."
                )
    if skipped:
        counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(skipped.items()))
        print(f"left out, files of other kinds: {counts}", file=sys.stderr)
    if not files:
        raise UserError(f"--input = {' '.join(inputs)} holds no text: give {KINDS}.")
    repeated = next((file for file, count in Counter(files).items() if count > 1), None)
    if repeated is not None:
        raise UserError(f"--input names {repeated} twice: name each file once.")
    return tuple(files)


def _named(given: str) -> Sequence[str]:
    with storage_errors(f"--input = {given}", "read", "correct the path"):
        is_folder = as_path(given).is_dir()
    return [given] if is_folder else list_files([given], "--input")


def _walk(folder: epath.Path, entered: set[str], skipped: Counter[str]) -> Iterator[str]:
    """The text files below a folder; a folder that is `entered`, as by a link, is left out."""
    if _identity(folder) in entered:
        return
    entered.add(_identity(folder))
    with storage_errors(f"--input: {folder}", "listed", "change its permissions"):
        entries = sorted(folder.iterdir())
    for path in entries:
        if path.name.startswith("."):
            skipped["hidden"] += 1
        elif path.is_dir():
            yield from _walk(path, entered, skipped)
        elif is_text_file(path.name):
            yield str(path)
        else:
            skipped[path.suffix or "without suffix"] += 1


def _identity(folder: os.PathLike[str] | str) -> str:
    text = str(as_path(folder))
    return text if "://" in text else os.path.realpath(text)
