"""Text files: found in folders, by path or by glob, and divided over independent shards."""

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from etils import epath

from hyla_lm.data.row_writer import encoded
from hyla_lm.errors import UserError, printable
from hyla_lm.input.documents import KINDS, TEXT_FIELD, is_text_file, read_texts
from hyla_lm.input.packing import Block
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path, list_files, names_and_sizes, sizes, storage_errors

SHARD_BYTES = 32_000_000
NAMES_SHOWN = 10


@dataclass(frozen=True)
class TextFiles:
    """Text files in order, of which a shard holds some; `field` is that of the text in each.

    `suffixes` are more endings of plain text; if it `skips`, rows without text are left out.
    """

    files: tuple[str, ...]
    field: str = TEXT_FIELD
    suffixes: tuple[str, ...] = ()
    skips: bool = False

    @property
    def name(self) -> str:
        first = as_path(self.files[0]).name
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def content(self) -> list[str]:
        """Names and sizes of the files; a preparation only continues with the same ones."""
        fields = [] if self.field == TEXT_FIELD else [f"field {self.field}"]
        return names_and_sizes(self.files) + fields + ["rows without text skipped"] * self.skips

    def default_shards(self) -> int:
        """One for each SHARD_BYTES of the files, but no more than files."""
        return min(len(self.files), 1 + sum(filter(None, sizes(self.files))) // SHARD_BYTES)

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        skipped = Counter[str]()
        yield from encoded(self.texts(index, shards, skipped), tokenizer)
        report_skipped(skipped)

    def texts(
        self, index: int = 0, shards: int = 1, skipped: Counter[str] | None = None
    ) -> Iterator[str]:
        """The texts of a shard, by default of all of them; counts what is left out."""
        count, counted = len(self.files), Counter[str]() if skipped is None else skipped
        for file in self.files[index * count // shards : (index + 1) * count // shards]:
            yield from read_texts(file, self.field, self.suffixes, counted if self.skips else None)


def report_skipped(skipped: Counter[str]) -> None:
    """Prints how many rows without text were left out, and of which files."""
    if skipped:
        print(f"left out, rows without text: {_listed(skipped)}", file=sys.stderr)


def _listed(counts: Counter[str]) -> str:
    """A sum, and the first of the names."""
    shown = ", ".join(map(printable, islice(counts, NAMES_SHOWN)))
    return f"{counts.total():,} ({shown}{', …' if len(counts) > NAMES_SHOWN else ''})"


def find_text_files(
    inputs: Sequence[str], without: str = "", suffixes: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The text files of folders, paths and globs, each once, without those in `without`.

    A folder may hold other files, which are listed in a line on standard error. Raises UserError
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
                files += [name for name in found if is_text_file(name, suffixes)]
                others += [name for name in found if not is_text_file(name, suffixes)]
            elif is_text_file(path.name, suffixes):
                files.append(str(path))
            else:
                raise UserError(
                    f"--input: {printable(str(path))} is of no known format: give {KINDS}, a "
                    "folder, whose other files are left out, or its ending as --suffix."
                )
    if others:
        print(f"left out, files of other kinds: {_listed(Counter(others))}", file=sys.stderr)
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
