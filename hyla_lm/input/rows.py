"""The rows format: packed token rows in ArrayRecord shards, described by a manifest.

A record is one row of T+1 token ids followed by a little-endian uint32, the UTF-8 byte count of the
row's target text. Documents stand back to back as BOS, ids, EOS. Neighbouring rows of a shard
overlap by one token, so every token is a target once; the end of a shard's last row is filled with
BOS, which has no weight as a target.
"""

import resource
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, SupportsIndex

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from hyla_lm.ending import reason_of
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import BYTE_COUNT_BYTES, Manifest
from hyla_lm.storage import PathLike, as_path, bucket_of, retrying, sizes

READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
BUFFER_BYTES = 32_768
OPENING_THREADS = 32
FILES_BESIDES = 512

RowBatch = dict[str, np.ndarray]


class RowTable(Protocol):
    """Rows that can be read in any order."""

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> RowBatch:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""


@dataclass(frozen=True)
class RowSet:
    """Rows of a folder or in memory, read in any order.

    `identity` is a hash of their content, `text_bytes` the size of their text.
    """

    rows: RowTable
    sequence_length: int
    identity: str
    text_bytes: int


@dataclass(frozen=True)
class Counts:
    """What rows hold; `tokens` are targets with weight, documents and bytes count whole ones."""

    rows: int = 0
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    max_token_id: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.rows + other.rows,
            self.tokens + other.tokens,
            self.documents + other.documents,
            self.text_bytes + other.text_bytes,
            max(self.max_token_id, other.max_token_id),
        )


def count_rows(tokens: np.ndarray, text_bytes: np.ndarray, bos: int) -> Counts:
    """Counts of n rows (n x T+1, n); a document starts at a BOS whose next token is no BOS."""
    is_bos = tokens == bos
    return Counts(
        rows=len(tokens),
        tokens=int(np.count_nonzero(~is_bos[:, 1:])),
        documents=int(np.count_nonzero(is_bos[:, :-1] & ~is_bos[:, 1:])),
        text_bytes=int(text_bytes.sum(dtype=np.int64)),
        max_token_id=int(tokens.max()),
    )


def encode_rows(tokens: np.ndarray, text_bytes: np.ndarray, dtype: str) -> list[bytes]:
    """Records of n rows: tokens (n x T+1) and the byte counts of their target text (n)."""
    little = np.dtype(dtype).newbyteorder("<")
    columns = [np.ascontiguousarray(tokens, little), text_bytes.astype("<u4")[:, None]]
    packed = np.concatenate([column.view(np.uint8) for column in columns], axis=1)
    return [row.tobytes() for row in packed]


def decode_rows(records: Sequence[bytes], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of encode_rows: int32 tokens (n x T+1) and byte counts (n)."""
    packed = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
    tokens = packed[:, :-BYTE_COUNT_BYTES].copy().view(np.dtype(dtype).newbyteorder("<"))
    text_bytes = packed[:, -BYTE_COUNT_BYTES:].copy().view("<u4")
    return tokens.astype(np.int32), text_bytes[:, 0].astype(np.int32)


class Records:
    """All records of some ArrayRecord files as one sequence.

    Raises UserError, naming the file, for one that is damaged or cannot be read.
    """

    def __init__(self, files: Sequence[str]):
        self.files = tuple(files)
        _allow_open_files(len(self.files))
        with ThreadPoolExecutor(min(len(self.files), OPENING_THREADS)) as pool:
            self._readers = list(pool.map(self._open_file, range(len(self.files))))
        self._ends = list(accumulate(self.counts()))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> bytes:
        file, place = self.locate(int(index))
        reader = self._readers[file]
        return self._try(lambda: reader.read(place, place + 1)[0], file, place)

    def locate(self, index: int) -> tuple[int, int]:
        """The file that holds a record, and the record's place in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        file = bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def counts(self) -> list[int]:
        """Records of each file."""
        return [reader.num_records() for reader in self._readers]

    def first_of_each(self) -> list[bytes]:
        """The first record of each file."""
        starts = [end - count for end, count in zip(self._ends, self.counts(), strict=True)]
        with ThreadPoolExecutor(min(len(self.files), OPENING_THREADS)) as pool:
            return list(pool.map(self.__getitem__, starts))

    def _open_file(self, file: int) -> ArrayRecordReader:
        reader = self._try(lambda: _reader(self.files[file]), file, None)
        if reader.num_records() == 0:
            raise UserError(f"{self.files[file]} holds no records: copy the shard again.")
        return reader

    def _try(self, action: Callable[[], Any], file: int, place: int | None) -> Any:
        """Tries again what may pass; in a bucket ArrayRecord's RuntimeError may be the network."""
        path = self.files[file]

        def read() -> Any:
            try:
                return action()
            except RuntimeError as error:
                raise (ConnectionError if bucket_of(path) else RuntimeError)(str(error)) from error

        try:
            return retrying(read, path)
        except (OSError, RuntimeError) as error:
            what = path if place is None else f"{path}: record {place}"
            raise UserError(
                f"{what} is damaged ({reason_of(error)}): copy the shard again."
            ) from error


def _reader(path: str) -> ArrayRecordReader:
    reader = ArrayRecordReader(path, READER_OPTIONS, file_reader_buffer_size=BUFFER_BYTES)
    if not reader.ok():
        reader.read([0])  # raises the reason
    return reader


def _allow_open_files(count: int) -> None:
    """Raises this process's soft limit of open files if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + FILES_BESIDES
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class RowReader:
    """Random access to the rows of a folder.

    Raises UserError, naming the shard, if one is missing, cut short, damaged, or not the one in the
    manifest; opening reads every shard's footer and first row.
    """

    def __init__(self, folder: PathLike, manifest: Manifest):
        self._manifest = manifest
        paths = [as_path(folder) / shard.name for shard in manifest.shards]
        for path, shard, size in zip(paths, manifest.shards, sizes(paths), strict=True):
            if size != shard.size_bytes:
                there = "is missing" if size is None else f"has {size} bytes"
                raise UserError(
                    f"{path} {there}, of {shard.size_bytes} in its manifest: copy the shard again."
                )
        self._records = Records([str(path) for path in paths])
        found = zip(self._records.counts(), self._records.first_of_each(), strict=True)
        for path, shard, (count, first) in zip(paths, manifest.shards, found, strict=True):
            if count != shard.rows or zlib.crc32(first) != shard.first_row_crc32:
                raise UserError(
                    f"{path} is not the shard its manifest describes (rows): copy the shard again."
                )

    def __len__(self) -> int:
        return self._manifest.rows

    def read(self, rows: Sequence[int]) -> RowBatch:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        if len(rows) == 0:
            tokens = np.empty((0, self._manifest.sequence_length + 1), np.int32)
            return {"tokens": tokens, "text_bytes": tokens[:, 0], "row": tokens[:, 0]}
        width, vocabulary = self._manifest.row_bytes, self._manifest.vocab_size
        records = [self._records[row] for row in rows]
        for row, record in zip(rows, records, strict=True):
            if len(record) != width:
                raise self._wrong(row, f"has {len(record)} bytes where the manifest says {width}")
        tokens, text_bytes = decode_rows(records, self._manifest.dtype)
        largest = tokens.view(np.uint32).max(axis=1)
        if largest.max() >= vocabulary:
            at = int(largest.argmax())
            raise self._wrong(
                rows[at], f"holds the id {largest[at]}, beyond the vocabulary of {vocabulary}"
            )
        return {"tokens": tokens, "text_bytes": text_bytes, "row": np.array(rows, np.int32)}

    def _wrong(self, row: int, what: str) -> UserError:
        file, place = self._records.locate(int(row))
        return UserError(
            f"{self._records.files[file]}: row {place} {what}: prepare the rows again."
        )


class MemoryRows:
    """Rows held in memory, read like those of a folder."""

    def __init__(self, tokens: np.ndarray, text_bytes: np.ndarray):
        self._tokens, self._text_bytes = tokens, text_bytes.astype(np.int32)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, rows: Sequence[int]) -> RowBatch:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        index = np.array(rows, np.int32)
        return {"tokens": self._tokens[index], "text_bytes": self._text_bytes[index], "row": index}
