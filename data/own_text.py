"""A user's text: from any text files to a tokenizer, training rows and validation rows."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hyla_lm.data.preparation import Preparation, begin_folder
from hyla_lm.data.row_writer import encoded
from hyla_lm.data.text_files import TextFiles, report_skipped
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import FORMAT, PRODUCER
from hyla_lm.input.packing import Block
from hyla_lm.input.prepared import TOKENIZER
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path

TRAIN, VALIDATION = "train", "validation"
VOCAB_SIZE, SEQUENCE_LENGTH, VALIDATION_FRACTION = 4096, 256, 0.05
FEWEST_DOCUMENTS = 20


@dataclass(frozen=True)
class SplitText:
    """The documents of a split of text files, without blank ones, as a source of a preparation.

    A document is validation by a hash of it, or in part: `by_tail` its end is.
    """

    own: "OwnText"
    split: str

    @property
    def name(self) -> str:
        return self.own.files.name

    def content(self) -> list[str]:
        held_out = "the end of each document" if self.own.by_tail else "whole documents"
        return [f"SHA-256 {self.own.survey.digest}", f"{held_out} {self.own.fraction}"]

    def blocks(self, index: int, shards: int, tokenizer: Tokenizer) -> Iterator[Block]:
        """Shard `index` of `shards`, tokenised."""
        return encoded(self.texts(index, shards), tokenizer)

    def texts(self, index: int = 0, shards: int = 1) -> Iterator[str]:
        """The texts of a shard; by default all of them."""
        own = self.own
        for text in own.files.texts(index, shards):
            if own.by_tail:
                train, held_out = cut(text, own.fraction)
            else:
                train, held_out = ("", text) if is_held_out(text, own.fraction) else (text, "")
            part = held_out if self.split == VALIDATION else train
            if part and not part.isspace():
                yield part


@dataclass(frozen=True)
class Survey:
    """What the files hold: documents, those left out as blank, bytes, and a hash of all texts."""

    documents: int
    blank: int
    text_bytes: int
    held_out_bytes: int
    digest: str


@dataclass(frozen=True)
class OwnText:
    """A folder of rows to be made of text files; `vocab_size` None is at most VOCAB_SIZE."""

    files: TextFiles
    output: str
    vocab_size: int | None = None
    sequence_length: int = SEQUENCE_LENGTH
    fraction: float = VALIDATION_FRACTION
    shards: int | None = None

    def begin(self) -> None:
        """Reads the text and begins the folder, or continues it.

        Raises UserError for damaged or blank text and for a folder of another request.
        """
        if self.survey.documents == 0:
            raise UserError(f"--input: all of {self.files.name} is blank: give files with text.")
        asked = {
            "text": [f"{self.files.name}, SHA-256 {self.survey.digest}"],
            "vocab_size": self.vocab_size,
            "sequence_length": self.sequence_length,
            "validation_fraction": self.fraction,
            "producer": PRODUCER,
            "format": FORMAT,
        }
        begin_folder(self.output, asked)

    @cached_property
    def survey(self) -> Survey:
        """Reads all text once."""
        documents = blank = text_bytes = held_out = 0
        digest, skipped = hashlib.sha256(), Counter[str]()
        for text in self.files.texts(skipped=skipped):
            data = text.encode()
            digest.update(hashlib.sha256(data).digest())
            if not text or text.isspace():
                blank += 1
                continue
            documents += 1
            text_bytes += len(data)
            held_out += len(data) if is_held_out(text, self.fraction) else 0
        report_skipped(skipped)
        return Survey(documents, blank, text_bytes, held_out, digest.hexdigest())

    @cached_property
    def by_tail(self) -> bool:
        """Whether ends are held out: whole documents are few, or of very unequal size."""
        survey, wanted = self.survey, self.fraction * self.survey.text_bytes
        is_near = wanted / 4 <= survey.held_out_bytes <= 4 * wanted
        if survey.documents >= FEWEST_DOCUMENTS and is_near:
            return False
        if all(cut(text, self.fraction)[1] == "" for text in self.files.texts()):
            raise UserError(
                f"{self.files.name} has too little text to hold a part out for validation: "
                "give more text or a larger --validation_fraction."
            )
        return True

    def make_tokenizer(self) -> Tokenizer:
        """The tokenizer of the training text, trained unless it is there."""
        path = str(as_path(self.output) / TOKENIZER)
        if not as_path(path).exists():
            train_tokenizer(
                SplitText(self, TRAIN).texts(),
                self.vocab_size or VOCAB_SIZE,
                path,
                for_code=True,
                at_most=self.vocab_size is None,
            )
        return Tokenizer(path)

    def preparation(self, split: str, tokenizer: Tokenizer) -> Preparation:
        """The preparation of a split's rows; validation rows are one shard."""
        shards = (self.shards or self.files.default_shards()) if split == TRAIN else 1
        folder = str(as_path(self.output) / split)
        source = SplitText(self, split)
        return Preparation(source, tokenizer, folder, split, self.sequence_length, shards)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document is validation: equal documents are in the same split."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") < fraction * 2**64


def cut(text: str, fraction: float) -> tuple[str, str]:
    """Head and tail of a document, the tail about a fraction of it.

    It is cut after a line end if one is near, else after a space if one is near. A document whose
    head or tail would be blank is all head.
    """
    target, reach = len(text) - round(len(text) * fraction), round(len(text) * fraction / 2)
    border = target
    for sign in ("\n", " "):
        before = text.rfind(sign, target - reach, target) + 1
        if after_sign := before or text.find(sign, target, target + reach) + 1:
            border = after_sign
            break
    head, tail = text[:border], text[border:]
    return (head, tail) if head.strip() and tail.strip() else (text, "")
