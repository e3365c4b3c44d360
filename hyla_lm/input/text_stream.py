"""Batches packed from a stream of documents, exactly resumable at any token of any document.

The state is the start of the next row: the cursor of its document and the token inside it. To
resume, the document is tokenised again and its first tokens are dropped.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import grain
import numpy as np
from grain.experimental import ThreadPrefetchIterDataset

from hyla_lm.errors import UserError
from hyla_lm.input.packing import Block, Packed, Packer
from hyla_lm.input.source import Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard

DOCUMENTS_PER_BLOCK = 64
Cursor = dict[str, int]
ROW_NUMBERS = 2**31


class Documents(Protocol):
    """An endless, repeatable sequence of documents; a cursor names a place in it."""

    def start(self) -> Cursor:
        """The cursor of the first document."""
        ...

    def after(self, cursor: Cursor) -> Generator[tuple[Cursor, Any]]:
        """Documents with their cursors, beginning with the one at `cursor`."""
        ...

    def encode(self, documents: list[Any]) -> Block:
        """The documents as tokens."""
        ...


class PackedBatches(grain.IterDataset):
    """Batches of rows of T+1 tokens, cut from documents that stand back to back."""

    def __init__(
        self, documents: Documents, batch_size: int, sequence_length: int, tokenizer: Tokenizer
    ):
        super().__init__()
        self.documents, self.batch_size = documents, batch_size
        self.sequence_length, self.tokenizer = sequence_length, tokenizer

    def __iter__(self) -> "PackedIterator":
        return PackedIterator(self)


class PackedIterator(grain.DatasetIterator):
    """Iterates PackedBatches; its state is {"document": cursor, "token": n, "row": n}."""

    def __init__(self, source: PackedBatches):
        super().__init__()
        self._source = source
        self.set_state({"document": source.documents.start(), "token": 0, "row": 0})

    def get_state(self) -> dict[str, Any]:
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        self._state = dict(state)
        self._rows = _Rows(self._source, state["document"], state["token"])

    def close(self) -> None:
        self._rows.close()

    def __next__(self) -> dict[str, np.ndarray]:
        tokens, text_bytes, (cursor, token) = self._rows.take(self._source.batch_size)
        first = self._state["row"]
        self._state = {"document": cursor, "token": token, "row": first + len(tokens)}
        row = (first + np.arange(len(tokens))) % ROW_NUMBERS
        return {"tokens": tokens, "text_bytes": text_bytes, "row": row.astype(np.int32)}


class _Rows:
    """The rows of documents from a place on, with the start of each row."""

    def __init__(self, source: PackedBatches, cursor: Cursor, token: int):
        self._documents = source.documents
        self._stream = source.documents.after(cursor)
        self._packer = Packer(source.sequence_length, source.tokenizer)
        self._skip = token
        self._rest_start = (cursor, token)
        self._ready: list[_Ready] = []

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray, tuple[Cursor, int]]:
        """The next rows, their text bytes, and the start of the row after them."""
        while sum(ready.left for ready in self._ready) < count:
            self._fill()
        tokens, text_bytes, needed = [], [], count
        while needed:
            ready = self._ready[0]
            part = ready.take(needed)
            tokens.append(part.tokens)
            text_bytes.append(part.text_bytes)
            needed -= len(part.tokens)
            start = ready.start
            if ready.left == 0:
                self._ready.pop(0)
        return np.concatenate(tokens), np.concatenate(text_bytes).astype(np.int32), start

    def close(self) -> None:
        """Stops reading."""
        self._stream.close()

    def _fill(self) -> None:
        entries = list(islice(self._stream, DOCUMENTS_PER_BLOCK))
        if not entries:
            raise UserError("the training text holds no document: give files with text.")
        block = self._documents.encode([document for _, document in entries])
        packed = self._packer.push(block, self._skip)
        self._skip = 0
        ready = _Ready(packed, block, [cursor for cursor, _ in entries], self._rest_start)
        self._rest_start = ready.start_of(len(packed.tokens))
        if ready.left:
            self._ready.append(ready)


class _Ready:
    """Packed rows of one block, taken from the front."""

    def __init__(
        self, packed: Packed, block: Block, cursors: list[Cursor], rest_start: tuple[Cursor, int]
    ):
        self._packed, self._block, self._cursors = packed, block, cursors
        self._rest_start = rest_start
        self._taken = 0

    @property
    def left(self) -> int:
        return len(self._packed.tokens) - self._taken

    @property
    def start(self) -> tuple[Cursor, int]:
        """The start of the next row."""
        return self.start_of(self._taken)

    def start_of(self, row: int) -> tuple[Cursor, int]:
        position = int(self._packed.starts[row])
        if position < 0:
            return self._rest_start
        document = int(self._block.document_at(np.array(position)))
        return self._cursors[document], position - int(self._block.starts_D[document])

    def take(self, count: int) -> Packed:
        rows = slice(self._taken, self._taken + count)
        self._taken = min(self._taken + count, len(self._packed.tokens))
        return Packed(
            self._packed.tokens[rows], self._packed.text_bytes[rows], self._packed.starts[rows]
        )


@dataclass(frozen=True)
class StreamedText:
    """Documents as training text: each process streams its own part of them."""

    name: str
    content: str
    tokenizer: Tokenizer
    sequence_length: int
    reading: Reading
    documents_of: Callable[[BatchShard], Documents]

    def identity(self) -> str:
        return self.content

    def summary(self) -> str:
        return f"{self.name}, tokenised while training"

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> "TextStream":
        documents, rows = self.documents_of(shard), len(shard.places)
        batches = PackedBatches(documents, rows, self.sequence_length, self.tokenizer)
        state = None if states is None else state_of_shard(states, shard)
        return TextStream(batches, self.reading.ahead, state)


class TextStream:
    """Endless batches of one process, made ahead of training in a thread."""

    def __init__(self, batches: PackedBatches, ahead: int, state: dict[str, Any] | None):
        prefetched = ThreadPrefetchIterDataset(batches, prefetch_buffer_size=ahead)
        self._iterator = iter(prefetched)
        if state is not None:
            self._iterator.set_state(state)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        return next(self._iterator)

    def state(self) -> dict[str, Any]:
        return self._iterator.get_state()

    def close(self) -> None:
        self._iterator.close()


def state_of_shard(states: list[dict[str, Any]], shard: BatchShard) -> dict[str, Any]:
    """This process's state; raises UserError if the checkpoint has another number of processes."""
    if len(states) != shard.count:
        raise UserError(
            f"the checkpoint is of {len(states)} processes, each somewhere in text of its own, and "
            f"cannot be continued by {shard.count}: resume it on {len(states)}, or train on "
            "prepared rows (@Rows()), which any number of processes continues."
        )
    return states[shard.index]
