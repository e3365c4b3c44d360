"""Where rows come from: a folder of prepared rows, checked before training."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from hyla_lm.config import UserError, configurable, setting
from hyla_lm.input.rows import Manifest, RowReader, check_rows, read_manifest
from hyla_lm.input.tokenizer import Tokenizer


@runtime_checkable
class DataSource(Protocol):
    """Anything gin can name as data: it prepares rows, or points at rows already prepared."""

    def prepare(self) -> "Rows":
        """Makes the rows if need be and returns where they are."""
        ...


@configurable
@dataclass(frozen=True)
class Rows:
    """Prepared rows on disk: a training split, a validation split and their tokenizer."""

    train: str = setting("", "folder of the training rows")
    validation: str = setting("", "folder of the validation rows")
    tokenizer: str = setting("", "SentencePiece model the rows were made with")

    def check(self) -> None:
        for name in ("train", "validation", "tokenizer"):
            if not getattr(self, name):
                raise UserError(f"Rows.{name} is not set: give its path.")

    def prepare(self) -> "Rows":
        return self


@dataclass(frozen=True)
class Split:
    """An open split: its folder, manifest and rows."""

    folder: Path
    manifest: Manifest
    rows: RowReader


def open_split(folder: str, tokenizer: Tokenizer, sequence_length: int, batch_size: int) -> Split:
    """Opens rows after every check that can be made before training; raises UserError."""
    path = Path(folder).expanduser()
    manifest = read_manifest(path)
    if manifest.sequence_length != sequence_length:
        raise UserError(
            f"LanguageModel.sequence_length = {sequence_length} but {path} holds rows of "
            f"{manifest.sequence_length}: set it to {manifest.sequence_length} or prepare rows."
        )
    check_rows(path, manifest, tokenizer)
    if manifest.rows < batch_size:
        raise UserError(
            f"{path} holds {manifest.rows} rows, fewer than one batch of {batch_size}: "
            "lower TrainConfig.batch_size or prepare more rows."
        )
    return Split(path, manifest, RowReader(path, manifest))
