"""The protocols of data sources: what gin names as data, and what a task reads from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from etils import epath

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest, check_manifest, read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard
from hyla_lm.storage import as_path


@dataclass(frozen=True)
class Reading:
    """How to read: threads, batches ahead of training, worker processes, tries of each read."""

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

    def __next__(self) -> dict[str, np.ndarray]: ...

    def state(self) -> dict[str, Any]:
        """The position after the last batch."""
        ...

    def close(self) -> None:
        """Stops reading ahead."""
        ...


class TrainingText(Protocol):
    """A text as training batches, with its identity."""

    def identity(self) -> str:
        """A hash of the data; a run can only go on with the same one."""
        ...

    def summary(self) -> str:
        """A line for the start-up summary."""
        ...

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        """One shard of the batches, from the start or from the saved states of all shards."""
        ...


@runtime_checkable
class TellsPasses(Protocol):
    """A text of several sources, or a task that trains on one."""

    def passes(self, rows: int) -> dict[str, str]:
        """Lines for the start-up summary: what a run of so many rows takes of each source."""
        ...


@dataclass(frozen=True)
class RowSet:
    """Rows of a folder or in memory, read in any order.

    `identity` is a hash of their content, `text_bytes` the size of their text.
    """

    rows: RowTable
    sequence_length: int
    identity: str
    text_bytes: int
    baselines_bits_per_byte: dict[str, float]


@dataclass(frozen=True)
class LanguageData:
    """The data of a language model: training text, validation rows and their tokenizer.

    `sets` are parts of the validation rows by name. `trained_on` identifies the rows that a text of
    several sources is made of.
    """

    tokenizer: Tokenizer
    train: TrainingText
    validation: RowSet
    sets: Mapping[str, RowSet] = field(default_factory=dict)
    trained_on: tuple[str, ...] = ()


@runtime_checkable
class DataSource(Protocol):
    """Anything gin can name as data."""

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        """Checks the data as far as possible before training, and opens it."""
        ...


@runtime_checkable
class InFolders(Protocol):
    """A data source that is prepared rows: their folders and the file of their tokenizer."""

    @property
    def folders(self) -> tuple[str, ...]: ...

    @property
    def tokenizer(self) -> str: ...


def open_rows(
    folder: str, tokenizer: Tokenizer, sequence_length: int, batch_size: int, attempts: int = 1
) -> tuple[RowSet, Manifest]:
    """Opens a folder of rows; raises UserError for one that does not fit or is damaged."""
    manifest = read_manifest(folder)
    check_fit(folder, manifest, tokenizer, sequence_length, batch_size)
    return rows_of_folder(as_path(folder), manifest, attempts), manifest


def check_fit(
    folder: str, manifest: Manifest, tokenizer: Tokenizer, sequence_length: int, batch_size: int
) -> None:
    """Raises UserError for rows of another length or tokenizer, or fewer than a batch."""
    path = as_path(folder)
    if manifest.sequence_length != sequence_length:
        raise UserError(
            f"{path} holds rows of {manifest.sequence_length} tokens, not {sequence_length}: "
            f"prepare rows of {sequence_length} or train on {manifest.sequence_length}.",
            "sequence_length",
        )
    check_manifest(path, manifest, tokenizer)
    if manifest.rows < batch_size:
        raise UserError(
            f"{path} holds {manifest.rows} rows, fewer than one batch of {batch_size}: prepare "
            "more rows or make batches smaller.",
            "batch_size",
        )


def rows_of_folder(folder: epath.Path, manifest: Manifest, attempts: int = 1) -> RowSet:
    """The rows of a folder whose manifest was read."""
    return RowSet(
        RowReader(folder, manifest, attempts),
        manifest.sequence_length,
        manifest.sha256,
        manifest.text_bytes,
        manifest.baselines_bits_per_byte,
    )
