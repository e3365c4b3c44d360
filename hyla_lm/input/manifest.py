"""The manifest of a folder of rows: manifest.json, written after the shards it names."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from etils import epath

from hyla_lm.errors import UserError, printable
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import PathLike, as_path, read_whole, write_whole

MANIFEST = "manifest.json"
FORMAT = 2
BYTE_COUNT_BYTES = 4
LARGEST_NAME_BYTES = 255
NO_MANIFEST = (
    *(ValueError, TypeError, KeyError, AttributeError),
    *(OverflowError, RecursionError, MemoryError),
)


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
    """The content of a folder of rows; a folder with a manifest has whole shards.

    `tokens` counts targets with weight; `documents` and `text_bytes` count whole documents.
    `baselines_bits_per_byte` are results of other models on the split's whole text.
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


def row_dtype(vocab_size: int) -> str:
    """The smallest token dtype of the format that holds the vocabulary."""
    return "uint16" if vocab_size <= 2**16 else "uint32"


def write_manifest(folder: PathLike, manifest: Manifest) -> None:
    """Writes the manifest beside its shards."""
    text = json.dumps(asdict(manifest), indent=1, sort_keys=True) + "\n"
    write_whole(as_path(folder) / MANIFEST, text.encode())


def read_manifest(folder: PathLike) -> Manifest:
    """Reads a folder's manifest; raises UserError if it is absent or not of this format."""
    path = as_path(folder) / MANIFEST
    text = read_whole(path)
    if text is None:
        raise UserError(f"{path} does not exist: give a folder of prepared rows.")
    try:
        fields: dict[str, Any] = json.loads(
            text, object_pairs_hook=_without_repeats, parse_constant=_no_number
        )
        if fields["format"] != FORMAT:
            raise UserError(
                f"{path} has format {fields['format']!r:.40}, not {FORMAT}: prepare again."
            )
        shards = tuple(Shard(**shard) for shard in fields.pop("shards"))
        manifest = Manifest(**fields, shards=shards)
        for part, checks in ((manifest, FIELDS), *((shard, SHARD_FIELDS) for shard in shards)):
            _check_fields(part, checks)
    except NO_MANIFEST as error:
        reason = printable(str(error))
        raise UserError(
            f"{path} is no rows manifest ({reason:.120}): prepare the rows again."
        ) from error
    return manifest


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("it names a field twice")
    return fields


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _check_fields(part: Any, checks: Mapping[str, Callable[[Any], bool]]) -> None:
    for name, is_sound in checks.items():
        value = getattr(part, name)
        if not is_sound(value):
            raise ValueError(f"{name} = {value!r:.40}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_file_name(value: Any) -> bool:
    """Whether it names a file in the folder itself, and can be printed on a line."""
    return (
        _is_text(value)
        and value not in ("", ".", "..")
        and value.isprintable()
        and not set("/\\") & set(value)
        and len(value.encode()) <= LARGEST_NAME_BYTES
    )


def _is_hash(value: Any) -> bool:
    return _is_text(value) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _within(first: int, end: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and first <= value < end


def _are_ids(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_within(-1, 2**31), value.values()))


def _are_figures(value: Any) -> bool:
    return isinstance(value, dict) and all(
        type(figure) in (int, float) and math.isfinite(figure) for figure in value.values()
    )


SHARD_FIELDS = {
    "name": _is_file_name,
    "size_bytes": _within(1, 2**63),
    "rows": _within(1, 2**31),
    "sha256": _is_hash,
    "first_row_crc32": _within(0, 2**32),
}
FIELDS = {
    "split": _is_text,
    "source": _is_text,
    "sequence_length": _within(1, 2**31),
    "dtype": ("uint16", "uint32").__contains__,
    "rows": _within(1, 2**31),
    "tokens": _within(1, 2**63),
    "documents": _within(0, 2**63),
    "text_bytes": _within(0, 2**63),
    "max_token_id": _within(0, 2**32),
    "vocab_size": _within(1, 2**31),
    "special_ids": _are_ids,
    "tokenizer_sha256": _is_hash,
    "seed": lambda value: value is None or type(value) is int,
    "producer": _is_text,
    "baselines_bits_per_byte": _are_figures,
    "format": lambda value: type(value) is int,
}


def check_manifest(folder: epath.Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    """Raises UserError unless counts, dtype, vocabulary and tokenizer fit each other."""
    where = folder / MANIFEST
    names = [shard.name for shard in manifest.shards]
    if len(set(names)) != len(names) or not names:
        raise UserError(f"{where} lists no shard or one twice: prepare the rows again.")
    if sum(shard.rows for shard in manifest.shards) != manifest.rows:
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
    if manifest.special_ids != tokenizer.special_ids:
        raise UserError(
            f"{where} has special ids {manifest.special_ids} but {tokenizer.path} has "
            f"{tokenizer.special_ids}: prepare the rows again."
        )
    if manifest.dtype != row_dtype(manifest.vocab_size):
        raise UserError(f"{where} has dtype {manifest.dtype}: prepare the rows again.")
