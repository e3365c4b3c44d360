"""Prepared rows as a data source, for long runs."""

from dataclasses import dataclass
from typing import Any

from hyla_lm.config import check_given, configurable, setting
from hyla_lm.input.manifest import Manifest
from hyla_lm.input.row_stream import RowStream, check_equal_states
from hyla_lm.input.source import LanguageData, Reading, RowSet, open_rows
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
        tokenizer = Tokenizer(self.tokenizer)
        attempts = reading.attempts
        train, manifest = open_rows(self.train, tokenizer, sequence_length, batch_size, attempts)
        validation, _ = open_rows(self.validation, tokenizer, sequence_length, 1, attempts)
        return LanguageData(tokenizer, PreparedText(train, manifest, reading), validation)


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
