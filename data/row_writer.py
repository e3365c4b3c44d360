"""Writes rows: blocks of documents into ArrayRecord shards, and the manifest that names them."""

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from etils import epath

import hyla_lm
from hyla_lm.data.progress import track
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import MANIFEST, Manifest, Shard, row_dtype, write_manifest
from hyla_lm.input.packing import Block, Packed, Packer, encode_texts
from hyla_lm.input.records import Records
from hyla_lm.input.rows import encode_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path, bucket_of, written_aside

DOCUMENTS_PER_BLOCK = 256
SHUFFLED_DOCUMENTS = 2**17
WRITER_OPTIONS = "group_size:1,snappy"


@dataclass(frozen=True)
class ShardReport:
    """A shard on disk and its part of the manifest's counts."""

    shard: Shard
    tokens: int
    documents: int
    text_bytes: int
    max_token_id: int


def write_shard(
    path: epath.Path, blocks: Iterable[Block], tokenizer: Tokenizer, sequence_length: int
) -> ShardReport:
    """Writes one shard aside, checks it, and renames it; raises UserError if that fails."""
    counted = _Counted(tokenizer, sequence_length)
    try:
        if not bucket_of(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            crc = _write_records(aside, counted.records(blocks))
            rows = _checked_rows(aside, counted.rows)
            digest = _sha256(aside)
            size = aside.stat().st_size
            _sync(aside)
    except (OSError, RuntimeError) as error:
        raise UserError(
            f"{path} cannot be written ({error}): make room or give another folder."
        ) from error
    shard = Shard(path.name, size, rows, digest, crc)
    return ShardReport(
        shard, counted.tokens, counted.documents, counted.text_bytes, counted.max_token_id
    )


class _Counted:
    """Turns blocks into records and counts what they hold."""

    def __init__(self, tokenizer: Tokenizer, sequence_length: int):
        self._tokenizer, self._length = tokenizer, sequence_length
        self.rows = self.tokens = self.documents = self.text_bytes = self.max_token_id = 0

    def records(self, blocks: Iterable[Block]) -> Iterator[bytes]:
        packer = Packer(self._length, self._tokenizer)
        for block in blocks:
            self.documents += len(block.ends_D)
            self.text_bytes += int(block.bytes_D.sum())
            yield from self._encode(packer.push(block))
        yield from self._encode(packer.last())

    def _encode(self, packed: Packed) -> list[bytes]:
        if len(packed.tokens) == 0:
            return []
        self.rows += len(packed.tokens)
        self.tokens += int(np.count_nonzero(packed.tokens[:, 1:] != self._tokenizer.bos))
        self.max_token_id = max(self.max_token_id, int(packed.tokens.max()))
        dtype = row_dtype(self._tokenizer.vocab_size)
        return encode_rows(packed.tokens, packed.text_bytes, dtype)


def _sync(path: Path) -> None:
    """Returns when the file's bytes are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_records(path: Path, records: Iterator[bytes]) -> int:
    """Writes all records; returns the CRC-32 of the first."""
    first = next(records, None)
    if first is None:
        raise UserError(f"{path.name} would hold no rows: there is no text for it.")
    writer = ArrayRecordWriter(str(path), WRITER_OPTIONS)
    try:
        writer.write(first)
        for record in records:
            writer.write(record)
    finally:
        writer.close()
    return zlib.crc32(first)


def _checked_rows(path: Path, expected: int) -> int:
    """The number of rows in a written file; raises OSError if some are lost."""
    rows = len(Records([str(path)]))
    if rows != expected:
        raise OSError(f"{rows} of {expected} rows reached the disk")
    return rows


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shard_name(split: str, index: int, count: int) -> str:
    return f"{split}-{index:05d}-of-{count:05d}.arrayrecord"


def manifest_of(
    reports: Sequence[ShardReport],
    tokenizer: Tokenizer,
    *,
    split: str,
    source: str,
    sequence_length: int,
    seed: int | None,
) -> Manifest:
    """The manifest of finished shards."""
    return Manifest(
        split=split,
        source=source,
        sequence_length=sequence_length,
        dtype=row_dtype(tokenizer.vocab_size),
        rows=sum(report.shard.rows for report in reports),
        tokens=sum(report.tokens for report in reports),
        documents=sum(report.documents for report in reports),
        text_bytes=sum(report.text_bytes for report in reports),
        max_token_id=max(report.max_token_id for report in reports),
        vocab_size=tokenizer.vocab_size,
        special_ids=tokenizer.special_ids,
        tokenizer_sha256=tokenizer.sha256,
        seed=seed,
        producer=f"hyla_lm {hyla_lm.__version__}",
        shards=tuple(report.shard for report in reports),
    )


def write_rows(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    split: str,
    source: str,
    sequence_length: int,
    seed: int,
    shards: int = 1,
) -> Manifest:
    """Writes a folder of rows in this process; the train split's documents are shuffled.

    Raises UserError if the folder cannot be written, holds rows already, or gets no text.
    """
    target = as_path(folder)
    if (target / MANIFEST).exists():
        raise UserError(f"{folder} holds rows already: give a new folder.")
    texts = list(track(documents, f"packing {split} rows"))
    if not texts:
        raise UserError(f"{folder} would hold no rows: {source} has no {split} documents.")
    texts = list(shuffled(texts, seed)) if split == "train" else texts
    borders = [len(texts) * index // shards for index in range(shards + 1)]
    try:
        reports = [
            write_shard(
                target / shard_name(split, index, shards),
                encoded(texts[borders[index] : borders[index + 1]], tokenizer),
                tokenizer,
                sequence_length,
            )
            for index in range(shards)
        ]
        manifest = manifest_of(
            reports,
            tokenizer,
            split=split,
            source=source,
            sequence_length=sequence_length,
            seed=seed,
        )
        write_manifest(target, manifest)
    except OSError as error:
        raise UserError(f"{folder} cannot be written ({error}): give another folder.") from error
    return manifest


def shuffled(documents: Iterable[str], seed: int) -> Iterator[str]:
    """The documents in a seeded order; long streams are shuffled in large windows."""
    rng = np.random.default_rng(seed)
    for window in batched(documents, SHUFFLED_DOCUMENTS):
        for index in rng.permutation(len(window)):
            yield window[index]


def encoded(documents: Iterable[str], tokenizer: Tokenizer) -> Iterator[Block]:
    """Blocks of tokenised documents."""
    for texts in batched(documents, DOCUMENTS_PER_BLOCK):
        yield encode_texts(texts, tokenizer)


def batched(items: Iterable[str], size: int) -> Iterator[list[str]]:
    """Lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
