"""Where text comes from: what gin can name as data, and what the task sees of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from etils import epath

from hyla_lm.config import UserError
from hyla_lm.input.files import as_path
from hyla_lm.input.manifest import Manifest, check_manifest, read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard


@dataclass(frozen=True)
class Reading:
    """How input is read: threads, batches ahead of training, worker processes, tries of a read."""

    threads: int = 1
    ahead: int = 8
    workers: int = 0
    attempts: int = 5


class RowTable(Protocol):
    """Rows that can be read in any order, as dicts of tokens, text_bytes and row."""

    def __len__(self) -> int: ...

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]: ...


class Batches(Protocol):
    """An endless iterator of one process's shard of host batches, restorable from JSON."""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]: ...

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class TrainingText(Protocol):
    """Training batches of some text, and what names it."""

    def identity(self) -> str:
        """Hash of what must be equal for a run to be continued."""
        ...

    def summary(self) -> str:
        """A line for the start-up summary."""
        ...

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        """A shard of the batches, from the start or from the states of all shards."""
        ...


@dataclass(frozen=True)
class RowSet:
    """Rows that can be read in any order: a folder of them, or some held in memory.

    `identity` names their content; `text_bytes` is the size of their text.
    """

    rows: RowTable
    sequence_length: int
    identity: str
    text_bytes: int
    baselines_bits_per_byte: dict[str, float]


@dataclass(frozen=True)
class LanguageData:
    """The data of a language model: text to train on, validation rows, their tokenizer."""

    tokenizer: Tokenizer
    train: TrainingText
    validation: RowSet


@runtime_checkable
class DataSource(Protocol):
    """Anything gin can name as data."""

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        """Opens the data after every check that can be made before training."""
        ...


def open_rows(
    folder: str, tokenizer: Tokenizer, sequence_length: int, batch_size: int, attempts: int = 1
) -> tuple[RowSet, Manifest]:
    """Opens a folder of rows; raises UserError for one that does not fit or is damaged."""
    path = as_path(folder)
    manifest = read_manifest(path)
    if manifest.sequence_length != sequence_length:
        raise UserError(
            f"LanguageModel.sequence_length = {sequence_length} but {path} holds rows of "
            f"{manifest.sequence_length}: set it to {manifest.sequence_length} or prepare rows."
        )
    check_manifest(path, manifest, tokenizer)
    if manifest.rows < batch_size:
        raise UserError(
            f"{path} holds {manifest.rows} rows, fewer than one batch of {batch_size}: "
            "lower TrainConfig.batch_size or prepare more rows."
        )
    return rows_of_folder(path, manifest, attempts), manifest


def rows_of_folder(folder: epath.Path, manifest: Manifest, attempts: int = 1) -> RowSet:
    """The rows of a folder whose manifest was read."""
    return RowSet(
        RowReader(folder, manifest, attempts),
        manifest.sequence_length,
        manifest.sha256,
        manifest.text_bytes,
        manifest.baselines_bits_per_byte,
    )
