"""The manifest of a folder of rows, manifest.json, and the verification of the shards it names.

It is written after its shards, so a folder with a manifest is whole.
"""

import hashlib
import json
import random
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from threading import Event, Thread
from typing import Any

import numpy as np

from hyla_lm.errors import UserError, printable
from hyla_lm.input.tokenizer import SPECIAL, Tokenizer
from hyla_lm.storage import PathLike, as_path, chunks, read_whole, storage_errors, write_whole

MANIFEST = "manifest.json"
FORMAT = 2
# The release since which the same text gives the same rows. The hash of a manifest counts it.
PRODUCER = "0.1.0"
BYTE_COUNT_BYTES = 4
NO_MANIFEST = (
    *(ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)
# Beside training, the share of time in which a thread reads.
BUSY_SHARE = 0.1
CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Shard:
    """One ArrayRecord file: name, size in bytes, rows, SHA-256, and CRC-32 of its first record."""

    name: str
    size_bytes: int
    rows: int
    sha256: str
    first_row_crc32: int


@dataclass(frozen=True)
class Manifest:
    """The content of a folder of rows.

    `tokens` counts targets with weight; `documents` and `text_bytes` count whole documents.
    `baselines_bits_per_byte` are of earlier manifests, whose hash counts them; nothing reads them.
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
    special_ids: dict[str, int]
    tokenizer_sha256: str
    seed: int | None
    producer: str
    shards: tuple[Shard, ...]
    baselines_bits_per_byte: dict[str, float] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def row_bytes(self) -> int:
        return (self.sequence_length + 1) * np.dtype(self.dtype).itemsize + BYTE_COUNT_BYTES

    @property
    def sha256(self) -> str:
        """Hash of the manifest, which identifies the data exactly."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def summary(self) -> str:
        """One line."""
        size = sum(shard.size_bytes for shard in self.shards)
        return (
            f"{self.split}: {self.documents:,} documents, {self.text_bytes / 1e6:,.2f} MB of text, "
            f"{self.tokens:,} tokens, {self.text_bytes / self.tokens:.2f} bytes per token, "
            f"{self.rows:,} rows of {self.sequence_length} tokens ({size / 1e6:,.1f} MB, shards: "
            f"{len(self.shards)})"
        )


def row_dtype(vocab_size: int) -> str:
    """The smallest token dtype of the format that holds the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_manifest(folder: PathLike, manifest: Manifest) -> None:
    """Writes the manifest beside its shards."""
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"
    write_whole(as_path(folder) / MANIFEST, text.encode())


def read_manifest(folder: PathLike) -> Manifest:
    """Reads a folder's manifest; raises UserError if it is absent, of another format or unsound."""
    path = as_path(folder) / MANIFEST
    text = read_whole(path)
    if text is None:
        raise UserError(f"{path} does not exist: give a folder of prepared rows.")
    try:
        values: dict[str, Any] = json.loads(text)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']!r:.40}, not {FORMAT}")
        shards = tuple(Shard(**shard) for shard in values.pop("shards"))
        manifest = Manifest(**values, shards=shards)
        _check(manifest)
    except NO_MANIFEST as error:
        reason = printable(str(error))
        raise UserError(
            f"{path} is no rows manifest ({reason:.120}): prepare the rows again."
        ) from error
    return manifest


def _check(m: Manifest) -> None:
    """Raises ValueError for what cannot be: a folder of rows may come from anybody."""
    parts: tuple[Manifest | Shard, ...] = (m, *m.shards)
    for part in parts:
        for each in fields(part):
            value = getattr(part, each.name)
            is_other = each.type in (int, str) and type(value) is not each.type
            if is_other or (each.type is int and not 0 <= value < 2**63):
                raise ValueError(f"{each.name} = {value!r:.40}")
    names = [shard.name for shard in m.shards]
    wrong = {
        "rows": sum(shard.rows for shard in m.shards) != m.rows or m.rows >= 2**31,
        "tokens": m.tokens == 0,
        "sequence_length": m.sequence_length >= 2**31,
        "dtype": m.dtype != row_dtype(m.vocab_size),
        "max_token_id": m.max_token_id >= m.vocab_size or m.vocab_size >= 2**31,
        "special_ids": set(m.special_ids) != set(SPECIAL),
        "shards": not 0 < len(set(names)) == len(names) or not all(map(_is_file_name, names)),
    }
    for name, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(name)


def _is_file_name(value: str) -> bool:
    """Whether it names a file in the folder itself, and can be printed on a line."""
    return value.isprintable() and not set("/\\") & set(value) and value not in ("", ".", "..")


def check_tokenizer(folder: PathLike, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Raises UserError unless rows were made with a tokenizer."""
    ours = tokenizer.sha256, tokenizer.vocab_size, tokenizer.special_ids
    if (manifest.tokenizer_sha256, manifest.vocab_size, manifest.special_ids) != ours:
        raise UserError(
            f"{as_path(folder) / MANIFEST} was made with another tokenizer than {tokenizer.path}: "
            "give the tokenizer of these rows."
        )


def shard_hashes(folder: PathLike, manifest: Manifest) -> dict[str, str]:
    """The SHA-256 that the manifest of a folder gives for each shard, by path."""
    place = as_path(folder)
    return {str(place / shard.name): shard.sha256 for shard in manifest.shards}


class Verification:
    """Verifies shards, whose SHA-256 are given by path, in a thread while a run trains on them."""

    def __init__(self, hashes: Mapping[str, str]):
        # A run that is often stopped begins with another shard each time.
        self._hashes = random.sample(list(hashes.items()), len(hashes))
        self._fault: Exception | None = None
        self._stop = Event()
        self._thread = Thread(target=self._run, name="verification", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises, once, UserError for a shard that differs from its manifest or cannot be read."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def close(self) -> None:
        """Stops; raises as `check` does."""
        self._stop.set()
        self._thread.join(CLOSE_SECONDS)
        self.check()

    def _run(self) -> None:
        try:
            for path, sha256 in self._hashes:
                verify_shard(path, sha256, self._stop)
                if self._stop.is_set():
                    return
        except Exception as error:
            self._fault = error


def verify_shard(path: str, sha256: str, stop: Event | None = None) -> None:
    """Raises UserError for a shard of another hash; with `stop`, reads slowly and ends early."""
    digest, started = hashlib.sha256(), time.monotonic()
    with storage_errors(path, "read", "copy the shard again"):
        for chunk in chunks(as_path(path)):
            digest.update(chunk)
            if stop is not None:
                busy = time.monotonic() - started
                if stop.wait(busy * (1 / BUSY_SHARE - 1)):
                    return
                started = time.monotonic()
    if digest.hexdigest() != sha256:
        consequence = "" if stop is None else "; every step so far may have read it"
        raise UserError(
            f"{path} is not the shard its manifest describes (sha256): copy it again{consequence}."
        )
