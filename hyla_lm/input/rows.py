"""The rows format: packed token rows in ArrayRecord shards, described by a manifest.

A record is one row of T+1 token ids followed by a little-endian uint32, the UTF-8 byte count of the
row's target text. Documents stand back to back as BOS, ids, EOS. Neighbouring rows overlap by one
token, so every token is a target once; the end of the last row is filled with BOS, which as a
target weighs nothing.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
from array_record.python.array_record_data_source import ArrayRecordDataSource

from hyla_lm.config import UserError
from hyla_lm.input.tokenizer import Tokenizer

MANIFEST = "manifest.json"
FORMAT = 1
BYTE_COUNT_BYTES = 4
INTEGERS = ("sequence_length", "rows", "tokens", "text_bytes", "max_token_id", "vocab_size")


@dataclass(frozen=True)
class Shard:
    """One ArrayRecord file: its name, size in bytes, rows and SHA-256."""

    name: str
    size_bytes: int
    rows: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a folder of rows holds; written after its shards, so its presence means they are whole.

    `baselines_bits_per_byte` says what other models need for the split's whole text.
    """

    split: str
    source: str
    sequence_length: int
    dtype: str
    rows: int
    tokens: int
    documents: int
    text_bytes: int
    max_token_id: int
    vocab_size: int
    tokenizer_sha256: str
    seed: int
    producer: str
    shards: tuple[Shard, ...]
    baselines_bits_per_byte: dict[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def row_bytes(self) -> int:
        return (self.sequence_length + 1) * np.dtype(self.dtype).itemsize + BYTE_COUNT_BYTES

    @property
    def sha256(self) -> str:
        """Hash of the manifest's content, which names the data exactly."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def row_dtype(vocab_size: int) -> str:
    """The smallest token dtype of the format that holds the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def encode_row(tokens: np.ndarray, text_bytes: int, dtype: str) -> bytes:
    """One record: T+1 token ids of `dtype`, then the byte count of the target text."""
    return tokens.astype(np.dtype(dtype).newbyteorder("<")).tobytes() + text_bytes.to_bytes(
        BYTE_COUNT_BYTES, "little"
    )


def decode_row(record: bytes, dtype: str) -> tuple[np.ndarray, int]:
    """The inverse of encode_row: int32 tokens of shape T+1 and the byte count."""
    tokens = np.frombuffer(record[:-BYTE_COUNT_BYTES], np.dtype(dtype).newbyteorder("<"))
    return tokens.astype(np.int32), int.from_bytes(record[-BYTE_COUNT_BYTES:], "little")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes the manifest beside its shards: aside first, then renamed."""
    partial = folder / f".{MANIFEST}.partial"
    partial.write_text(json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n")
    partial.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Manifest:
    """Reads a folder's manifest; raises UserError if it is absent or not of this format."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"{path} does not exist: give a folder of prepared rows.")
    try:
        fields: dict[str, Any] = json.loads(path.read_text())
        shards = tuple(Shard(**shard) for shard in fields.pop("shards"))
        manifest = Manifest(**fields, shards=shards)
        if any(type(fields[name]) is not int for name in INTEGERS):
            raise TypeError(f"{INTEGERS} must be whole numbers")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is no rows manifest: prepare the rows again.") from error
    if manifest.format != FORMAT:
        raise UserError(f"{path} has format {manifest.format}, not {FORMAT}: prepare it again.")
    return manifest


def check_rows(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Raises UserError unless shards, sizes, widths, dtype, vocabulary and tokenizer all fit."""
    where = folder / MANIFEST
    names = [shard.name for shard in manifest.shards]
    if len(set(names)) != len(names) or not names:
        raise UserError(f"{where} lists no shard or one twice: prepare the rows again.")
    for shard in manifest.shards:
        path = folder / shard.name
        if not path.is_file():
            raise UserError(f"{path} is missing: copy the shard or prepare the rows again.")
        if path.stat().st_size != shard.size_bytes:
            raise UserError(
                f"{path} has {path.stat().st_size} bytes, not the {shard.size_bytes} of its "
                "manifest: copy the shard again."
            )
    if sum(shard.rows for shard in manifest.shards) != manifest.rows or manifest.rows < 1:
        raise UserError(f"{where} counts rows that its shards do not hold: prepare them again.")
    if manifest.tokenizer_sha256 != tokenizer.sha256:
        raise UserError(
            f"{where} was made with another tokenizer than {tokenizer.path}: "
            "give the tokenizer of these rows."
        )
    if manifest.vocab_size != tokenizer.vocab_size or manifest.max_token_id >= manifest.vocab_size:
        raise UserError(
            f"{where} has vocabulary {manifest.vocab_size} and ids up to {manifest.max_token_id}, "
            f"but {tokenizer.path} has {tokenizer.vocab_size} pieces: prepare the rows again."
        )
    if manifest.dtype != row_dtype(manifest.vocab_size):
        raise UserError(f"{where} has dtype {manifest.dtype}: prepare the rows again.")


class RowReader:
    """Random access to the rows of a folder: item i is a dict of tokens, text_bytes and row."""

    def __init__(self, folder: Path, manifest: Manifest):
        self._dtype, self._row_bytes = manifest.dtype, manifest.row_bytes
        self._folder = folder
        paths = [str(folder / shard.name) for shard in manifest.shards]
        try:
            self._records: Sequence[bytes] = ArrayRecordDataSource(paths)
        except (RuntimeError, ValueError, OSError) as error:
            raise UserError(f"{folder} holds a damaged shard: {_first_line(error)}") from error
        if len(self._records) != manifest.rows:
            raise UserError(
                f"{folder} holds {len(self._records)} rows where its manifest counts "
                f"{manifest.rows}: prepare the rows again."
            )
        self[0]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        row = int(index)
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        try:
            record = self._records[row]
        except RuntimeError as error:
            raise UserError(f"{self._folder}: row {row} is damaged; copy it again.") from error
        if len(record) != self._row_bytes:
            raise UserError(
                f"{self._folder}: row {row} has {len(record)} bytes where the manifest says "
                f"{self._row_bytes}: prepare the rows again."
            )
        tokens, text_bytes = decode_row(record, self._dtype)
        return {"tokens": tokens, "text_bytes": np.int32(text_bytes), "row": np.int32(row)}


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
