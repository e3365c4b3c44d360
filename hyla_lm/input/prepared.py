"""Prepared rows as a data source, for long runs."""

from dataclasses import dataclass
from typing import Any

from hyla_lm.config import UserError, check_given, configurable, setting
from hyla_lm.input.files import as_path
from hyla_lm.input.manifest import Manifest, read_manifest
from hyla_lm.input.row_stream import RowStream, check_equal_states
from hyla_lm.input.source import LanguageData, Reading, RowSet, check_fit, rows_of_folder
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard


@configurable
@dataclass(frozen=True)
class Rows:
    """Prepared rows on a disk or in a bucket: any number of hosts reads and resumes them."""

    train: str = setting("", "folder of the training rows")
    validation: str = setting("", "folder of the validation rows")
    tokenizer: str = setting("", "SentencePiece model the rows were made with")

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "train", "validation", "tokenizer")
        tokenizer, attempts = Tokenizer(self.tokenizer), reading.attempts
        train, validation = read_manifest(self.train), read_manifest(self.validation)
        self._check_splits(train, validation)
        check_fit(self.train, train, tokenizer, sequence_length, batch_size)
        check_fit(self.validation, validation, tokenizer, sequence_length, 1)
        rows = rows_of_folder(as_path(self.train), train, attempts)
        held_out = rows_of_folder(as_path(self.validation), validation, attempts)
        return LanguageData(tokenizer, PreparedText(rows, train, reading), held_out)

    def _check_splits(self, train: Manifest, validation: Manifest) -> None:
        """Raises UserError unless the manifests say that the folders are what they are given as."""
        if train.sha256 == validation.sha256:
            raise UserError(
                f"Rows.train = {self.train!r} and Rows.validation = {self.validation!r} hold the "
                "same rows: give a folder of each split."
            )
        if train.split != "train":
            raise UserError(
                f"Rows.train = {self.train!r} holds rows of the split {train.split!r}: give the "
                "rows of 'train', or prepare these documents with --split=train to train on them."
            )
        if validation.split == "train":
            raise UserError(
                f"Rows.validation = {self.validation!r} holds rows of the split 'train': give "
                "others, or prepare these documents with --split=validation to evaluate on them."
            )


@dataclass(frozen=True)
class PreparedText:
    """The training rows of a folder."""

    rows: RowSet
    manifest: Manifest
    reading: Reading

    def identity(self) -> str:
        return self.rows.identity

    def summary(self) -> str:
        m = self.manifest
        return (
            f"{m.source}: {m.rows:,} rows of {m.sequence_length} tokens, {m.documents:,} "
            f"documents, {m.text_bytes / 1e6:.1f} MB, {m.text_bytes / m.tokens:.2f} bytes a token"
        )

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> RowStream:
        state = None if states is None else check_equal_states(states)
        return RowStream(self.rows, shard, state, self.reading)
