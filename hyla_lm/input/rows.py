"""The rows format: packed token rows in ArrayRecord shards, described by a manifest.

A record is one row of T+1 token ids followed by a little-endian uint32, the UTF-8 byte count of the
row's target text. Documents stand back to back as BOS, ids, EOS. Neighbouring rows of a shard
overlap by one token, so every token is a target once; the end of a shard's last row is filled with
BOS, which has no weight as a target.
"""

import zlib
from collections.abc import Sequence

import numpy as np
from etils import epath

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import BYTE_COUNT_BYTES, Manifest, Shard
from hyla_lm.input.records import Records
from hyla_lm.storage import PathLike, as_path, sizes

LARGEST_COUNT = 2**31 - 1


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


class RowReader:
    """Random access to the rows of a folder, picklable for worker processes.

    Raises UserError, naming the shard, if one is missing, cut short, damaged, or not the one in the
    manifest; opening reads every shard's footer and first row.
    """

    def __init__(self, folder: PathLike, manifest: Manifest, attempts: int = 1):
        self._manifest = manifest
        paths = [as_path(folder) / shard.name for shard in manifest.shards]
        for path, shard, size in zip(paths, manifest.shards, sizes(paths), strict=True):
            _check_size(path, shard, size)
        self._records = Records([str(path) for path in paths], attempts)
        self._check_shards()

    def __len__(self) -> int:
        return self._manifest.rows

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        if len(rows) == 0:
            tokens = np.empty((0, self._manifest.sequence_length + 1), np.int32)
            return {"tokens": tokens, "text_bytes": tokens[:, 0], "row": tokens[:, 0]}
        records = [self._record(row) for row in rows]
        tokens, text_bytes = decode_rows(records, self._manifest.dtype)
        self._check_content(rows, tokens, text_bytes)
        return {"tokens": tokens, "text_bytes": text_bytes, "row": np.array(rows, np.int32)}

    def _record(self, row: int) -> bytes:
        record, expected = self._records[row], self._manifest.row_bytes
        if len(record) != expected:
            raise self._wrong(row, f"has {len(record)} bytes where the manifest says {expected}")
        return record

    def _check_content(
        self, rows: Sequence[int], tokens: np.ndarray, text_bytes: np.ndarray
    ) -> None:
        """Raises UserError for an id or a byte count that no row of the manifest can have.

        A tokenizer may drop any amount of text, so the text of the whole split is the only bound.
        """
        vocabulary = self._manifest.vocab_size
        largest = tokens.view(np.uint32).max(axis=1)
        if largest.max() >= vocabulary:
            at = int(largest.argmax())
            raise self._wrong(
                rows[at], f"holds the id {largest[at]}, beyond the vocabulary of {vocabulary}"
            )
        most = min(self._manifest.text_bytes, LARGEST_COUNT)
        counts = text_bytes.view(np.uint32)
        if counts.max() > most:
            at = int(counts.argmax())
            raise self._wrong(
                rows[at], f"counts {counts[at]} bytes of text, more than the {most} of all rows"
            )

    def _wrong(self, row: int, what: str) -> UserError:
        file, place = self._records.locate(int(row))
        return UserError(
            f"{self._records.files[file]}: row {place} {what}: prepare the rows again."
        )

    def _check_shards(self) -> None:
        facts = zip(
            self._manifest.shards,
            self._records.files,
            self._records.counts(),
            self._records.first_of_each(),
            strict=True,
        )
        for shard, file, count, first in facts:
            if count != shard.rows:
                raise UserError(
                    f"{file} holds {count} rows where its manifest counts {shard.rows}: "
                    "prepare the rows again."
                )
            if zlib.crc32(first) != shard.first_row_crc32:
                raise UserError(
                    f"{file} is not the shard its manifest describes, its first row differs: "
                    "copy the shard again."
                )


class MemoryRows:
    """Rows held in memory, read like those of a folder."""

    def __init__(self, tokens: np.ndarray, text_bytes: np.ndarray):
        self._tokens, self._text_bytes = tokens, text_bytes.astype(np.int32)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        index = np.array(rows, np.int32)
        return {"tokens": self._tokens[index], "text_bytes": self._text_bytes[index], "row": index}


def _check_size(path: epath.Path, shard: Shard, size: int | None) -> None:
    if size is None:
        raise UserError(f"{path} is missing: copy the shard or prepare the rows again.")
    if size != shard.size_bytes:
        raise UserError(
            f"{path} has {size} bytes, not the {shard.size_bytes} of its manifest: "
            "copy the shard again."
        )
