"""Random access to the texts of a TFDS dataset in ArrayRecord."""

import json
from collections.abc import Sequence
from typing import Any, SupportsIndex

from etils import epath

from hyla_lm.errors import UserError
from hyla_lm.input.documents import record_text
from hyla_lm.input.records import Records
from hyla_lm.storage import NUMBERED, as_path, read_whole

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
    infos = {folder: _info(folder) for folder in {as_path(file).parent for file in files}}
    for file, count in zip(files, counts, strict=True):
        expected = _count_in_info(file, infos[as_path(file).parent])
        if expected not in (None, count):
            raise UserError(
                f"{file} holds {count} records where {DATASET_INFO} says {expected}: "
                "fetch the shard again."
            )


def _info(folder: epath.Path) -> dict[str, Any]:
    text = read_whole(folder / DATASET_INFO)
    return {"splits": []} if text is None else json.loads(text)


def _count_in_info(file: str, info: dict[str, Any]) -> int | None:
    name, match = as_path(file).name, NUMBERED.match(file)
    if match is None:
        return None
    for split in info["splits"]:
        if f"-{split['name']}." in name and "shardLengths" in split:
            return int(split["shardLengths"][int(match["index"])])
    return None
