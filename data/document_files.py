"""Documents of text files, divided over independent shards."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hyla_lm.data.row_writer import encoded
from hyla_lm.errors import UserError
from hyla_lm.input.documents import TEXT_FIELD, read_texts
from hyla_lm.input.packing import Block
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import READ_ATTEMPTS, as_path, names_and_sizes


@dataclass(frozen=True)
class DocumentFiles:
    """Text files in order; a shard holds whole files, or every n-th document of one file.

    `field` holds the text of files that have fields.
    """

    files: tuple[str, ...]
    field: str = TEXT_FIELD

    @property
    def name(self) -> str:
        first = as_path(self.files[0]).name
        return first if len(self.files) == 1 else f"{first} and {len(self.files) - 1} more"

    def default_shards(self) -> int:
        return len(self.files)

    def check(self, shards: int) -> None:
        if shards > len(self.files) and shards % len(self.files):
            raise UserError(
                f"--shards={shards} is no multiple of the {len(self.files)} files: a shard holds "
                "whole files or an equal part of one."
            )

    def content(self) -> list[str]:
        """Names and sizes of the files; a preparation only goes on with the same ones."""
        fields = [] if self.field == TEXT_FIELD else [f"field {self.field}"]
        return names_and_sizes(self.files) + fields

    def shards_of(self, file: int, shards: int) -> list[int]:
        """The shards that hold documents of a file; the field, listed last, is of all."""
        count = len(self.files)
        if file == count:
            return list(range(shards))
        if shards > count:
            parts = shards // count
            return list(range(file * parts, (file + 1) * parts))
        return [s for s in range(shards) if s * count // shards <= file < (s + 1) * count // shards]

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        return encoded(self.texts(index, shards), tokenizer)

    def texts(self, index: int, shards: int) -> Iterator[str]:
        count = len(self.files)
        if shards <= count:
            for file in self.files[index * count // shards : (index + 1) * count // shards]:
                yield from read_texts(file, READ_ATTEMPTS, self.field)
        else:
            parts = shards // count
            texts = read_texts(self.files[index // parts], READ_ATTEMPTS, self.field)
            yield from islice(texts, index % parts, None, parts)
