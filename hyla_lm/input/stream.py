"""Text read straight from its files and tokenised while training, exactly resumable at any token.

The state of a stream is the start of its next row: the cursor of its document and the token inside
it. To resume, the document is tokenised again and its first tokens are dropped.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, SupportsIndex

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.documents import TextRecords, is_record_file, read_texts
from hyla_lm.input.packing import Block, Packer, encode_texts
from hyla_lm.input.row_stream import Shuffled
from hyla_lm.input.rows import MemoryRows, RowBatch, RowSet
from hyla_lm.input.source import Batches, LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import list_files, names_and_sizes

TEXTS_PER_PART = 16
PARTS_AHEAD = 8
DOCUMENTS_PER_BLOCK = 64
ROW_NUMBERS = 2**31
TOKENIZER_THREADS = 8  # of which a block of 64 documents can make use; they change no token

Cursor = dict[str, int]
Start = tuple[Cursor, int]


@configurable
@dataclass(frozen=True)
class C4Stream:
    """Text from C4's own files: AllenAI's json.gz, TFDS ArrayRecord, or any JSON lines.

    ArrayRecord is shuffled globally, document by document. Other files are shuffled as files, and
    each process reads whole files from first line to last.
    """

    train: tuple[str, ...] = setting(
        (), "paths or globs, such as ('c4-train.*.json.gz',)", path=True
    )
    validation: tuple[str, ...] = setting((), "paths or globs of the validation split", path=True)
    tokenizer: str = setting("", "SentencePiece model", path=True)
    validation_documents: int | None = setting(
        4096, "number of first documents that are the validation set; None takes all", minimum=1
    )

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "train", "validation", "tokenizer")
        tokenizer = Tokenizer(self.tokenizer)
        files = list_files(self.train, "C4Stream.train")
        table = TextRecords(files) if all(map(is_record_file, files)) else None

        def documents_of(shard: BatchShard) -> "FileTexts | RecordTexts":
            if table is not None:
                return RecordTexts(table, shard, reading)
            return FileTexts(files, shard)

        encode = partial(encode_texts, tokenizer=tokenizer, threads=TOKENIZER_THREADS)
        name = f"{files[0]} and {len(files) - 1} more" if len(files) > 1 else files[0]
        content = hashlib.sha256("\n".join(names_and_sizes(files)).encode()).hexdigest()
        train = StreamedText(
            name, content, tokenizer, sequence_length, reading, documents_of, encode
        )
        held_out = list_files(self.validation, "C4Stream.validation")
        texts = (text for file in held_out for text in read_texts(file))
        chosen = list(islice(texts, self.validation_documents))
        rows = rows_in_memory(encode(chosen), tokenizer, sequence_length)
        return LanguageData(tokenizer, train, rows)


class Documents(Protocol):
    """An endless, repeatable sequence of documents; a cursor names a place in it, {} the first."""

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, Any]]:
        """The documents from the one at the cursor on, each with its own cursor."""


@dataclass(frozen=True)
class FileTexts:
    """Texts of one process's files; each epoch has its own order of files.

    The cursor is the epoch, the place of the file in the process's order, and the document.
    """

    files: tuple[str, ...]
    shard: BatchShard

    def __post_init__(self) -> None:
        if len(self.files) < self.shard.count:
            raise UserError(
                f"{len(self.files)} files cannot feed {self.shard.count} processes, each of which "
                "reads its own files: give more files, or train on prepared rows (@Rows())."
            )

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, str]]:
        epoch, place, first = (cursor.get(name, 0) for name in ("epoch", "file", "document"))
        while True:
            files, holds_any = self._files_of(epoch), place > 0 or first > 0
            for file_index in range(place, len(files)):
                texts = read_texts(files[file_index])
                for document, text in enumerate(islice(texts, first, None), first):
                    holds_any = True
                    yield {"epoch": epoch, "file": file_index, "document": document}, text
                first = 0
            if not holds_any:
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
    shard: BatchShard
    reading: Reading

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, str]]:
        number = cursor.get("document", 0)
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
        order = Shuffled(len(self.texts))
        return [self.texts[order(place, self.shard.seed)] for place in places]


@dataclass(frozen=True)
class StreamedText:
    """Documents as training text: each process streams its own part of them.

    `content` identifies the text, and `encode` tokenises some documents.
    """

    name: str
    content: str
    tokenizer: Tokenizer
    sequence_length: int
    reading: Reading
    documents_of: Callable[[BatchShard], Documents]
    encode: Callable[[list[Any]], Block]

    def identity(self) -> str:
        return self.content

    def summary(self) -> str:
        return f"{self.name}, tokenised while training"

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        """Endless batches of one process, made ahead of training in a thread.

        Raises UserError for the states of another number of processes.
        """
        batches = PackedBatches(self, self.documents_of(shard), len(shard.places))
        iterator = iter(ThreadPrefetchIterDataset(batches, prefetch_buffer_size=self.reading.ahead))
        if states is not None:
            if len(states) != shard.count:
                raise UserError(
                    f"the checkpoint is of {len(states)} processes, each somewhere in text of its "
                    f"own, and cannot be continued by {shard.count}: resume it on {len(states)}, "
                    "or train on prepared rows (@Rows()), which any number of processes continues."
                )
            iterator.set_state(states[shard.index])
        return iterator


class PackedBatches(grain.IterDataset):
    """Batches of rows packed from a process's documents."""

    def __init__(self, text: StreamedText, documents: Documents, batch_size: int):
        super().__init__()
        self.text, self.documents, self.batch_size = text, documents, batch_size

    def __iter__(self) -> "PackedIterator":
        return PackedIterator(self)


class Row(NamedTuple):
    """A packed row, and where it starts: the cursor of a document and a token of it."""

    tokens_T1: np.ndarray
    text_bytes: int
    start: Start


class PackedIterator(grain.DatasetIterator):
    """Iterates PackedBatches; its state is {"document": cursor, "token": n, "row": n}."""

    def __init__(self, source: PackedBatches):
        super().__init__()
        self._source = source
        self.set_state({"document": {}, "token": 0, "row": 0})

    def get_state(self) -> dict[str, Any]:
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        text = self._source.text
        self._state = dict(state)
        self._stream = self._source.documents.after(state["document"])
        self._packer = Packer(text.sequence_length, text.tokenizer)
        self._skip = state["token"]
        self._rest_start: Start = (state["document"], state["token"])
        self._rows: deque[Row] = deque()

    def close(self) -> None:
        """Stops reading."""
        self._stream.close()

    def __next__(self) -> RowBatch:
        while len(self._rows) < self._source.batch_size:
            self._fill()
        rows = [self._rows.popleft() for _ in range(self._source.batch_size)]
        cursor, token = self._rows[0].start if self._rows else self._rest_start
        first = self._state["row"]
        self._state = {"document": cursor, "token": token, "row": first + len(rows)}
        numbers = (first + np.arange(len(rows))) % ROW_NUMBERS
        return {
            "tokens": np.stack([row.tokens_T1 for row in rows]),
            "text_bytes": np.array([row.text_bytes for row in rows], np.int32),
            "row": numbers.astype(np.int32),
        }

    def _fill(self) -> None:
        """Packs a block of documents; the rest that fills no row waits for the next."""
        entries = list(islice(self._stream, DOCUMENTS_PER_BLOCK))
        block = self._source.text.encode([document for _, document in entries])
        packed = self._packer.push(block, self._skip)
        self._skip = 0
        documents = block.document_at(packed.starts)
        tokens = packed.starts - block.starts_D[documents]
        starts: list[Start] = [
            (entries[document][0], token)
            for document, token in zip(documents.tolist(), tokens.tolist(), strict=True)
        ]
        if packed.starts[0] < 0:  # in an earlier block
            starts[0] = self._rest_start
        self._rows += map(Row, packed.tokens, packed.text_bytes.tolist(), starts[:-1])
        self._rest_start = starts[-1]


def rows_in_memory(block: Block, tokenizer: Tokenizer, sequence_length: int) -> RowSet:
    """The rows of whole documents, packed as prepared rows are."""
    packer = Packer(sequence_length, tokenizer)
    parts = [packer.push(block), packer.last()]
    tokens = np.concatenate([part.tokens for part in parts])
    text_bytes = np.concatenate([part.text_bytes for part in parts])
    identity = hashlib.sha256(tokens.tobytes() + text_bytes.tobytes()).hexdigest()
    rows = MemoryRows(tokens, text_bytes)
    return RowSet(rows, sequence_length, identity, int(text_bytes.sum()))
