"""Packs documents into rows of tokens and writes them as ArrayRecord shards with a manifest."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

import hyla_lm
from data.progress import track
from hyla_lm.config import UserError
from hyla_lm.input.rows import (
    MANIFEST,
    Manifest,
    Shard,
    encode_row,
    row_dtype,
    write_manifest,
)
from hyla_lm.input.tokenizer import Tokenizer

DOCUMENTS_PER_BATCH = 512
SHUFFLED_DOCUMENTS = 2**17


@dataclass
class Totals:
    """What has been written so far."""

    rows: int = 0
    tokens: int = 0
    documents: int = 0
    text_bytes: int = 0
    max_token_id: int = 0


def write_rows(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    folder: Path,
    *,
    split: str,
    source: str,
    sequence_length: int,
    seed: int,
    rows_per_shard: int = 65_536,
) -> Manifest:
    """Writes a folder of rows, its manifest last; the train split's documents are shuffled.

    Raises UserError if the folder cannot be written, holds rows already, or gets no text.
    """
    if (folder / MANIFEST).exists():
        raise UserError(f"{folder} holds rows already: give a new folder.")
    totals = Totals()
    ordered = shuffled(documents, seed) if split == "train" else documents
    blocks = encoded(track(ordered, f"packing {split} rows"), tokenizer, totals)
    records = _records(blocks, tokenizer, sequence_length, totals)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shards = _write_shards(records, folder, split, rows_per_shard)
        if not shards:
            raise UserError(f"{folder} would hold no rows: {source} has no {split} documents.")
        manifest = Manifest(
            split=split,
            source=source,
            sequence_length=sequence_length,
            dtype=row_dtype(tokenizer.vocab_size),
            rows=totals.rows,
            tokens=totals.tokens,
            documents=totals.documents,
            text_bytes=totals.text_bytes,
            max_token_id=totals.max_token_id,
            vocab_size=tokenizer.vocab_size,
            tokenizer_sha256=tokenizer.sha256,
            seed=seed,
            producer=f"hyla_lm {hyla_lm.__version__}",
            shards=shards,
        )
        write_manifest(folder, manifest)
    except (OSError, RuntimeError) as error:
        raise UserError(f"{folder} cannot be written ({error}): give another folder.") from error
    return manifest


def shuffled(documents: Iterable[str], seed: int) -> Iterator[str]:
    """The documents in a seeded order; long streams are shuffled one large window at a time."""
    rng = np.random.default_rng(seed)
    for window in _batches(documents, SHUFFLED_DOCUMENTS):
        for index in rng.permutation(len(window)):
            yield window[index]


def encoded(
    documents: Iterable[str], tokenizer: Tokenizer, totals: Totals
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of packed documents: token ids and the text bytes each token stands for."""
    for texts in _batches(documents, DOCUMENTS_PER_BATCH):
        sizes = [len(text.encode()) for text in texts]
        totals.documents += len(texts)
        totals.text_bytes += sum(sizes)
        tokens, token_bytes = [], []
        for ids, size in zip(tokenizer.processor.encode(texts), sizes, strict=True):
            tokens.append(np.array([tokenizer.bos, *ids, tokenizer.eos], np.int32))
            token_bytes.append(share_bytes(tokens[-1], size, tokenizer.piece_bytes))
        yield np.concatenate(tokens), np.concatenate(token_bytes)


def share_bytes(tokens: np.ndarray, size: int, piece_bytes: np.ndarray) -> np.ndarray:
    """Whole bytes per token that add up to `size`, in proportion to the pieces' own bytes."""
    cumulative = np.cumsum(piece_bytes[tokens])
    if cumulative[-1] == 0:
        cumulative = np.arange(1.0, len(tokens) + 1)
    shared = np.rint(cumulative * (size / cumulative[-1])).astype(np.int64)
    return np.diff(shared, prepend=0)


def _records(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    tokenizer: Tokenizer,
    sequence_length: int,
    totals: Totals,
) -> Iterator[bytes]:
    """Encoded rows: windows of T+1 tokens with stride T over the stream of all blocks."""
    dtype = row_dtype(tokenizer.vocab_size)
    for rows, row_bytes in _windows(blocks, sequence_length, tokenizer.bos):
        totals.rows += len(rows)
        totals.tokens += int(np.count_nonzero(rows[:, 1:] != tokenizer.bos))
        totals.max_token_id = max(totals.max_token_id, int(rows.max()))
        for row, text_bytes in zip(rows, row_bytes.tolist(), strict=True):
            yield encode_row(row, text_bytes, dtype)


def _windows(
    blocks: Iterable[tuple[np.ndarray, np.ndarray]], length: int, bos: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of rows, shape (n, T+1), and their target bytes, shape (n); the last is filled."""
    tokens, sizes = np.empty(0, np.int32), np.empty(0, np.int64)
    for block in blocks:
        tokens, sizes = np.concatenate([tokens, block[0]]), np.concatenate([sizes, block[1]])
        count = (len(tokens) - 1) // length
        if count:
            yield _cut(tokens, sizes, count, length)
            tokens, sizes = tokens[count * length :], sizes[count * length :]
    if len(tokens) > 1:
        missing = length + 1 - len(tokens)
        tokens = np.pad(tokens, (0, missing), constant_values=bos)
        yield _cut(tokens, np.pad(sizes, (0, missing)), 1, length)


def _cut(
    tokens: np.ndarray, sizes: np.ndarray, count: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length][:count]
    return rows, sizes[1 : count * length + 1].reshape(count, length).sum(axis=1)


def _write_shards(
    records: Iterator[bytes], folder: Path, split: str, rows_per_shard: int
) -> tuple[Shard, ...]:
    """Writes shards aside and names them once their number is known."""
    partial: list[Path] = []
    counts: list[int] = []
    for record in records:
        path = folder / f".{split}-{len(partial):05d}.partial"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        writer.write(record)
        count = 1
        for record in islice(records, rows_per_shard - 1):
            writer.write(record)
            count += 1
        writer.close()
        partial.append(path)
        counts.append(count)
    return tuple(
        _name_shard(path, f"{split}-{index:05d}-of-{len(partial):05d}.arrayrecord", count)
        for index, (path, count) in enumerate(zip(partial, counts, strict=True))
    )


def _name_shard(path: Path, name: str, rows: int) -> Shard:
    final = path.replace(path.with_name(name))
    with final.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Shard(name, final.stat().st_size, rows, digest)


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
