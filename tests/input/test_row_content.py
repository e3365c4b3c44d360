"""Rows that no tokenizer can have made stop a run, with the shard and the row in the sentence."""

import hashlib
import json
import zlib
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.input.row_stream import RowStream, evaluation_rows
from hyla_lm.input.rows import encode_rows
from hyla_lm.input.source import Reading, RowSet, open_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.batch_shard import BatchShard
from tests.conftest import SEQUENCE_LENGTH, VOCAB_SIZE

ROWS, WRONG = 24, 13


def forged(rows: Rows, folder: Path, token: int, text_bytes: int) -> RowSet:
    """A sound folder of one shard, but for a token and a byte count of one row."""
    tokens = np.full((ROWS, SEQUENCE_LENGTH + 1), 7)
    counts = np.full(ROWS, 20)
    tokens[WRONG, 5], counts[WRONG] = token, text_bytes
    records = encode_rows(tokens, counts, "uint16")
    folder.mkdir()
    path = folder / "shard"
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    content = path.read_bytes()
    shard = {
        "name": path.name,
        "size_bytes": len(content),
        "rows": ROWS,
        "sha256": hashlib.sha256(content).hexdigest(),
        "first_row_crc32": zlib.crc32(records[0]),
    }
    fields = json.loads(Path(rows.train, "manifest.json").read_text())
    changed = {"shards": [shard], "rows": ROWS, "text_bytes": 1000}
    (folder / "manifest.json").write_text(json.dumps({**fields, **changed}))
    return open_rows(str(folder), Tokenizer(rows.tokenizer), SEQUENCE_LENGTH, 8)[0]


WRONG_ROWS = (
    (VOCAB_SIZE, 20, f"holds the id {VOCAB_SIZE}, beyond the vocabulary of {VOCAB_SIZE}"),
    (2**16 - 1, 20, f"holds the id 65535, beyond the vocabulary of {VOCAB_SIZE}"),
    (7, 1001, "counts 1001 bytes of text, more than the 1000 of all rows"),
    (7, 2**32 - 1, "counts 4294967295 bytes of text, more than the 1000 of all rows"),
)


@pytest.mark.parametrize(
    ("token", "text_bytes", "what", "how"),
    [
        *((*row, how) for row in WRONG_ROWS for how in ("in_order", "shuffled")),
        (*WRONG_ROWS[0], "by_workers"),
        *(pytest.param(*row, "by_workers", marks=pytest.mark.full) for row in WRONG_ROWS[1:]),
    ],
)
def test_a_row_with_content_that_cannot_be_is_named(
    tiny_rows: Rows, tmp_path: Path, token: int, text_bytes: int, what: str, how: str
) -> None:
    split = forged(tiny_rows, tmp_path / "rows", token, text_bytes)
    if how == "in_order":
        batches = evaluation_rows(split, BatchShard(8), 1)
    else:
        reading = Reading(workers=2 if how == "by_workers" else 0)
        batches = RowStream(split, BatchShard(8), reading=reading)
    with closing(batches), pytest.raises(UserError) as error:
        list(islice(batches, ROWS // 8))
    expected = f"{tmp_path}/rows/shard: row {WRONG} {what}: prepare the rows again."
    assert str(error.value) == expected


def test_the_last_id_and_the_whole_text_in_a_row_are_sound(tiny_rows: Rows, tmp_path: Path) -> None:
    split = forged(tiny_rows, tmp_path / "rows", VOCAB_SIZE - 1, 1000)
    row = split.rows.read([WRONG])
    assert (row["tokens"].max(), row["text_bytes"][0]) == (VOCAB_SIZE - 1, 1000)
