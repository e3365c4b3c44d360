"""Prepared rows as a data source, for long runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hyla_lm.config.declare import check_given, configurable, setting
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest, Verification, read_manifest, shard_hashes
from hyla_lm.input.row_stream import Order, RowStream, Shuffled
from hyla_lm.input.rows import RowSet
from hyla_lm.input.source import LanguageData, Reading, open_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import as_path

TOKENIZER = "tokenizer.model"


@configurable
@dataclass(frozen=True)
class Rows:
    """Prepared rows on a disk or in a bucket: any number of hosts reads and resumes them."""

    train: str = setting("", "folder of the training rows", path=True)
    validation: str = setting("", "folder of the validation rows", path=True)
    tokenizer: str = setting("", "SentencePiece model the rows were made with", path=True)
    verify: str = setting(
        "background",
        "whether training reads every shard once more to compare its SHA-256, with a tenth of a "
        "core; in a bucket it is paid as traffic",
        choices=("background", "off"),
    )

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> "RowData":
        check_given(self, "train", "validation", "tokenizer")
        tokenizer = Tokenizer(self.tokenizer)
        train, validation = read_manifest(self.train), read_manifest(self.validation)
        self._check_splits(train, validation)
        rows = open_rows(self.train, tokenizer, sequence_length, batch_size, train)
        held_out = open_rows(self.validation, tokenizer, sequence_length, 1, validation)
        hashes = shard_hashes(self.train, train) | shard_hashes(self.validation, validation)
        described = f"{train.source}, {train.summary()}"
        to_verify = {} if self.verify == "off" else hashes
        text = RowText(rows, Shuffled(train.rows), described, reading, to_verify)
        return RowData(tokenizer, text, held_out)

    def _check_splits(self, train: Manifest, validation: Manifest) -> None:
        """Raises UserError unless the manifests say that the folders are what they are given as."""
        for name, manifest in (("train", train), ("validation", validation)):
            if (manifest.split == "train") != (name == "train"):
                raise UserError(
                    f"Rows.{name} = {getattr(self, name)!r} holds rows of the split "
                    f"{manifest.split!r}: give others, or prepare these documents with "
                    f"--split={name}."
                )


@configurable
@dataclass(frozen=True)
class OwnRows:
    """The rows that `hyla-lm data prepare --train_tokenizer` made of a user's text."""

    folder: str = setting(
        "rows", "folder that holds train, validation and tokenizer.model", path=True
    )

    @property
    def tokenizer(self) -> str:
        return str(as_path(self.folder) / TOKENIZER)

    def open(self, sequence_length: int, batch_size: int, reading: Reading) -> LanguageData:
        check_given(self, "folder")
        train, validation = (as_path(self.folder) / split for split in ("train", "validation"))
        rows = Rows(str(train), str(validation), self.tokenizer)
        return rows.open(sequence_length, batch_size, reading)


@dataclass(frozen=True)
class RowText:
    """Training rows in an order, and the hashes of shards to verify, those of validation too."""

    rows: RowSet
    order: Order
    described: str
    reading: Reading
    hashes: Mapping[str, str]

    def identity(self) -> str:
        return self.rows.identity

    def summary(self) -> str:
        return self.described

    def stream(self, shard: BatchShard, states: list[dict[str, Any]] | None) -> RowStream:
        """Of several processes, each verifies its part of the shards."""
        mine = dict(list(self.hashes.items())[shard.index :: shard.count])
        verification = Verification(mine) if mine else None
        return RowStream(self.rows, shard, states, self.reading, self.order, verification)


@dataclass(frozen=True)
class RowData(LanguageData):
    """The data that one folder of each split makes."""

    train: RowText
