"""C4 and other text read straight from its files and tokenised while training."""

import hashlib
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import SupportsIndex

import grain
import numpy as np

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.documents import check_gzip, is_record_file, read_texts
from hyla_lm.input.order import shuffled
from hyla_lm.input.packing import Block, Packer, encode_texts
from hyla_lm.input.rows import MemoryRows
from hyla_lm.input.source import LanguageData, Reading, RowSet
from hyla_lm.input.text_records import TextRecords
from hyla_lm.input.text_stream import Cursor, StreamedText
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.storage import list_files, names_and_sizes

TEXTS_PER_PART = 16
PARTS_AHEAD = 8


@configurable
@dataclass(frozen=True)
class C4Stream:
    """Text from C4's own files: AllenAI's json.gz, TFDS ArrayRecord, or any JSON lines.

    ArrayRecord is shuffled globally, document by document. Other files are shuffled as files, and
    each process reads whole files from first line to last.
    """

    train: tuple[str, ...] = setting((), "paths or globs, such as ('c4-train.*.json.gz',)")
    validation: tuple[str, ...] = setting((), "paths or globs of the validation split")
    tokenizer: str = setting("", "SentencePiece model")
    tokenizer_threads: int = setting(
        1, "threads that tokenise; their number changes no token", minimum=1
    )
    validation_documents: int | None = setting(
        4096, "number of first documents that are the validation set; None takes all", minimum=1
    )

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "train", "validation", "tokenizer")
        tokenizer = Tokenizer(self.tokenizer)
        files = list_files(self.train, "C4Stream.train")
        encoder = Encoder(tokenizer, self.tokenizer_threads)
        records = [is_record_file(file) for file in files]
        if any(records) and not all(records):
            raise UserError("C4Stream.train mixes ArrayRecord with other files: give one kind.")
        table = TextRecords(files, reading.attempts) if all(records) else None

        def documents_of(shard: BatchShard) -> "FileTexts | RecordTexts":
            if table is not None:
                return RecordTexts(table, encoder, shard, reading)
            return FileTexts(files, encoder, shard, reading.attempts)

        name = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0]
        content = content_of(files)
        train = StreamedText(name, content, tokenizer, sequence_length, reading, documents_of)
        return LanguageData(tokenizer, train, self._validation(encoder, sequence_length, reading))

    def _validation(self, encoder: "Encoder", sequence_length: int, reading: Reading) -> RowSet:
        files = list_files(self.validation, "C4Stream.validation")
        texts = (text for file in files for text in read_texts(file, reading.attempts))
        chosen = list(islice(texts, self.validation_documents))
        if not chosen:
            raise UserError("C4Stream.validation holds no document: give files with text.")
        return rows_in_memory(encoder(chosen), encoder.tokenizer, sequence_length)


@dataclass(frozen=True)
class Encoder:
    """Tokenises documents on some threads."""

    tokenizer: Tokenizer
    threads: int

    def __call__(self, texts: list[str]) -> Block:
        return encode_texts(texts, self.tokenizer, self.threads)


@dataclass(frozen=True)
class FileTexts:
    """Texts of one process's files; each epoch has its own order of files.

    The cursor is the epoch, the place of the file in the process's order, and the document.
    """

    files: tuple[str, ...]
    encode: Encoder
    shard: BatchShard
    attempts: int

    def __post_init__(self) -> None:
        if len(self.files) < self.shard.count:
            raise UserError(
                f"{len(self.files)} files cannot feed {self.shard.count} processes, each of which "
                "reads files of its own: give more files, or train on prepared rows (@Rows())."
            )

    def start(self) -> Cursor:
        return {"epoch": 0, "file": 0, "document": 0}

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, str]]:
        epoch, place, first = cursor["epoch"], cursor["file"], cursor["document"]
        with ThreadPoolExecutor(1) as pool:
            while True:
                files, found = self._files_of(epoch), place > 0 or first > 0
                checked = pool.submit(check_gzip, files[place], self.attempts)
                for file_index in range(place, len(files)):
                    checked.result()
                    ahead = files[file_index + 1] if file_index + 1 < len(files) else None
                    if ahead is not None:
                        checked = pool.submit(check_gzip, ahead, self.attempts)
                    texts = read_texts(files[file_index], self.attempts)
                    for document, text in enumerate(islice(texts, first, None), first):
                        found = True
                        yield {"epoch": epoch, "file": file_index, "document": document}, text
                    first = 0
                if not found:
                    raise UserError(f"{files[0]} and the files after it hold no document.")
                epoch, place = epoch + 1, 0

    def _files_of(self, epoch: int) -> list[str]:
        order = np.random.default_rng([self.shard.seed, epoch]).permutation(len(self.files))
        return [self.files[index] for index in order[self.shard.index :: self.shard.count]]


@dataclass(frozen=True)
class RecordTexts:
    """Texts of ArrayRecord files in one global order, reshuffled each epoch.

    The cursor is the place in this process's share of that order.
    """

    texts: TextRecords
    encode: Encoder
    shard: BatchShard
    reading: Reading

    def start(self) -> Cursor:
        return {"document": 0}

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, str]]:
        number = cursor["document"]
        parts = ShuffledTexts(self.texts, self.shard, number)
        threads = self.reading.threads
        options = grain.ReadOptions(threads, max(PARTS_AHEAD, threads))
        reader = iter(grain.MapDataset.source(parts).to_iter_dataset(options))
        try:
            for part in reader:
                for text in part:
                    yield {"document": number}, text
                    number += 1
        finally:
            reader.close()


@dataclass(frozen=True)
class ShuffledTexts:
    """Part i of one process's texts after the first `first`, in the global order."""

    texts: TextRecords
    shard: BatchShard
    first: int

    def __len__(self) -> int:
        return 2**62 // TEXTS_PER_PART

    def __getitem__(self, part: SupportsIndex) -> list[str]:
        index, count = self.shard.index, self.shard.count
        start = self.first + int(part) * TEXTS_PER_PART
        places = (number * count + index for number in range(start, start + TEXTS_PER_PART))
        seed, total = self.shard.seed, len(self.texts)
        return [self.texts[shuffled(place, total, seed)] for place in places]


def rows_in_memory(block: Block, tokenizer: Tokenizer, sequence_length: int) -> RowSet:
    """The rows of whole documents, packed as prepared rows are."""
    packer = Packer(sequence_length, tokenizer)
    parts = [packer.push(block), packer.last()]
    tokens = np.concatenate([part.tokens for part in parts])
    text_bytes = np.concatenate([part.text_bytes for part in parts])
    identity = hashlib.sha256(tokens.tobytes() + text_bytes.tobytes()).hexdigest()
    rows = MemoryRows(tokens, text_bytes)
    return RowSet(rows, sequence_length, identity, int(text_bytes.sum()), {})


def content_of(files: tuple[str, ...]) -> str:
    """Hash of the files' names and sizes, which identifies the text of a run."""
    entries = names_and_sizes(files)
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()
