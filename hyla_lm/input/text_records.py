"""The texts of a TFDS dataset in ArrayRecord, in any order."""

import json
from collections.abc import Sequence
from typing import SupportsIndex

from hyla_lm.config import UserError
from hyla_lm.input.documents import record_text
from hyla_lm.input.files import NUMBERED, as_path
from hyla_lm.input.records import Records

DATASET_INFO = "dataset_info.json"


class TextRecords:
    """Random access to texts; raises UserError naming a shard that is damaged or not TFDS's."""

    def __init__(self, files: Sequence[str], attempts: int = 1):
        self._records = Records(files, attempts)
        _check_counts(files, self._records.counts())

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: SupportsIndex) -> str:
        record = self._records[index]
        try:
            return record_text(record)
        except ValueError as error:
            file, place = self._records.locate(int(index))
            raise UserError(
                f"{self._records.files[file]}: record {place} holds no text ({error}): "
                "give shards of a TFDS dataset with a text feature."
            ) from error


def _check_counts(files: Sequence[str], counts: Sequence[int]) -> None:
    """Compares each shard with the count that TFDS wrote beside it."""
    for file, count in zip(files, counts, strict=True):
        expected = _count_in_info(file)
        if expected not in (None, count):
            raise UserError(
                f"{file} holds {count} records where {DATASET_INFO} says {expected}: "
                "fetch the shard again."
            )


def _count_in_info(file: str) -> int | None:
    path, match = as_path(file), NUMBERED.match(file)
    info = path.parent / DATASET_INFO
    if match is None or not info.is_file():
        return None
    for split in json.loads(info.read_text())["splits"]:
        if f"-{split['name']}." in path.name and "shardLengths" in split:
            return int(split["shardLengths"][int(match["index"])])
    return None
