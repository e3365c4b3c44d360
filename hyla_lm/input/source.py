"""The protocols of data sources: what gin names as data, and what a task reads from it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest, check_tokenizer, read_manifest
from hyla_lm.input.rows import RowBatch, RowReader, RowSet
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import as_path

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class Reading:
    """How to read: threads, and batches ahead of training."""

    threads: int = 1
    ahead: int = 8


class Batches(Protocol):
    """An endless iterator of one process's shard of host batches, restorable from JSON."""

    def __next__(self) -> RowBatch: ...

    def get_state(self) -> dict[str, Any]:
        """The position after the last batch."""

    def close(self) -> None:
        """Stops reading ahead."""


class TrainingText(Protocol):
    """A text as training batches, with its identity."""

    def identity(self) -> str:
        """A hash of the data; a run can only resume with the same one."""

    def summary(self) -> str:
        """A line for the start-up summary."""

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> Batches:
        """One shard of the batches, from the start or from the saved states of all shards."""


@dataclass(frozen=True)
class LanguageData:
    """The data of a language model: training text, validation rows and their tokenizer.

    `sets` are named parts of the validation rows.
    """

    tokenizer: Tokenizer
    train: TrainingText
    validation: RowSet
    sets: Mapping[str, RowSet] = field(default_factory=dict)


@runtime_checkable
class DataSource(Protocol):
    """Anything gin can name as data."""

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        """Checks the data as far as possible before training, and opens it."""


def open_rows(
    folder: str,
    tokenizer: Tokenizer,
    sequence_length: int,
    batch_size: int,
    manifest: Manifest | None = None,
) -> RowSet:
    """Opens a folder of rows, whose manifest may be read already.

    Raises UserError for rows of another length or tokenizer, fewer than a batch, or damaged.
    """
    path, m = as_path(folder), manifest or read_manifest(folder)
    if m.sequence_length != sequence_length:
        raise UserError(
            f"the rows in {path} have {m.sequence_length} tokens, which is not "
            f"LanguageModel.sequence_length = {sequence_length}: prepare other rows or change it."
        )
    check_tokenizer(path, m, tokenizer)
    if m.rows < batch_size:
        raise UserError(
            f"{path} holds {m.rows} rows, fewer than TrainConfig.batch_size = {batch_size}: "
            "prepare more rows or change it."
        )
    return RowSet(RowReader(path, m), m.sequence_length, m.sha256, m.text_bytes)


def open_named_rows(
    entries: Sequence[str], data: LanguageData, sequence_length: int
) -> dict[str, RowSet]:
    """Named validation sets, from "name=folder"; raises UserError for what does not fit."""
    sets: dict[str, RowSet] = {}
    for entry in entries:
        name, _, folder = entry.partition("=")
        if not NAME.fullmatch(name) or not folder or name in (*sets, *data.sets):
            raise UserError(
                f"LanguageModel.validation_sets has {entry!r}: write a different name, of "
                "letters, digits, _ and -, and a folder of rows, such as 'books=rows/books'."
            )
        sets[name] = open_rows(folder, data.tokenizer, sequence_length, 1)
    return sets
