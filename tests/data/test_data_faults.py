"""Faults in folders of rows: verify and a run refuse them, and name the shard or the row."""

import hashlib
import json
import shutil
import zlib
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.data.verify import verify
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import MANIFEST, Manifest, Shard, read_manifest, write_manifest
from hyla_lm.input.row_stream import RowStream
from hyla_lm.input.rows import RowReader, encode_rows
from hyla_lm.input.source import open_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard

Packed = tuple[Path, Manifest]
VOCAB_SIZE, LENGTH = 512, 16
WRONG = 13  # the row of a forged folder that has a fault


@pytest.fixture
def packed(packed_once: Packed, tmp_path: Path) -> Packed:
    """A copy of a folder of three shards, to damage."""
    return Path(shutil.copytree(packed_once[0], tmp_path / "rows")), packed_once[1]


def check_refused(folder: Path, tokenizer: Tokenizer, what: str) -> None:
    """Neither verify nor a run takes the folder, and both say why."""
    with pytest.raises(UserError, match=what):
        verify(str(folder))
    with pytest.raises(UserError, match=what):
        open_rows(str(folder), tokenizer, LENGTH, 8)


def test_shards_that_are_not_whole_are_named(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    first, second, _ = (folder / shard.name for shard in manifest.shards)
    whole = second.read_bytes()
    for data in (b"", whole[:-1], bytes(len(whole)), first.read_bytes()):
        second.write_bytes(data)
        check_refused(folder, tokenizer, second.name)
    second.unlink()
    check_refused(folder, tokenizer, second.name)


def test_a_bit_of_a_row_that_differs_is_found_at_that_row_and_by_verify(packed: Packed) -> None:
    folder, manifest = packed
    shard, row = folder / manifest.shards[1].name, manifest.shards[0].rows + 50
    reader = RowReader(folder, manifest)
    before = reader.read([row - 1])["tokens"]
    content = bytearray(shard.read_bytes())
    content[content.index(reader._records[row]) + 3] ^= 64
    shard.write_bytes(content)
    damaged = RowReader(folder, manifest)
    assert (damaged.read([row - 1])["tokens"] == before).all()
    with pytest.raises(UserError, match=f"{shard.name}: record 50 is damaged"):
        damaged.read([row])
    with pytest.raises(UserError, match=f"{shard.name} is not the shard its manifest describes"):
        verify(str(folder))


def test_other_facts_of_a_shard_are_refused(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    first, second, third = manifest.shards
    for name in ("size_bytes", "rows", "first_row_crc32"):
        shards = (first, replace(second, **{name: getattr(second, name) + 1}), third)
        rows = sum(shard.rows for shard in shards)
        write_manifest(folder, replace(manifest, shards=shards, rows=rows))
        check_refused(folder, tokenizer, second.name)


def test_contradictions_in_a_manifest_are_refused(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    for changed in (
        replace(manifest, shards=manifest.shards * 2, rows=2 * manifest.rows),
        replace(manifest, rows=manifest.rows + 1),
        replace(manifest, shards=()),
        replace(manifest, special_ids={}),
        replace(manifest, dtype="uint32"),
        replace(manifest, max_token_id=VOCAB_SIZE),
    ):
        write_manifest(folder, changed)
        check_refused(folder, tokenizer, MANIFEST)


NAMES = ("../a", "gs://bucket/shard", "..", "", "a\nb", "\ud800", 7)
UNSOUND: tuple[tuple[str, str, object], ...] = (
    *(("manifest", "rows", value) for value in (True, 2**31)),
    *(("manifest", "format", 1), ("manifest", "split", None), ("manifest", "special_ids", [])),
    *(("manifest", "shards", [1]), ("manifest", "surplus", 1), ("shard", "rows", -1)),
    *(("shard", "name", name) for name in NAMES),
)


@pytest.mark.parametrize(("part", "field", "value"), UNSOUND, ids=ascii)
def test_a_value_that_cannot_be_in_a_manifest_is_named(
    packed: Packed, part: str, field: str, value: object
) -> None:
    path = packed[0] / MANIFEST
    fields = json.loads(path.read_text())
    (fields if part == "manifest" else fields["shards"][1])[field] = value
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match=f"{path} is no rows manifest"):
        read_manifest(packed[0])


def forge(folder: Path, manifest: Manifest, records: list[bytes], **facts: Any) -> Path:
    """Makes the rows a folder of one shard of such records, and a manifest that fits it."""
    path = folder / manifest.shards[1].name
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()
    data = path.read_bytes()
    sha256, crc = hashlib.sha256(data).hexdigest(), zlib.crc32(records[0])
    shard = Shard(path.name, len(data), len(records), sha256, crc)
    write_manifest(folder, replace(manifest, rows=len(records), shards=(shard,), **facts))
    return path


def test_a_row_of_another_width_is_named(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    reader = RowReader(folder, manifest)
    records = [reader._records[row] for row in range(20)]
    path = forge(folder, manifest, [*records[:9], records[9][:-2], *records[10:]])
    rows = open_rows(str(folder), tokenizer, LENGTH, 8).rows
    assert (rows.read([8])["tokens"] == reader.read([8])["tokens"]).all()
    what = f"{path.name}: row 9 has 36 bytes where the manifest says 38"
    with pytest.raises(UserError, match=what):
        rows.read([9])


def test_a_row_with_an_id_beyond_the_vocabulary_ends_a_stream_and_is_named(
    packed: Packed, tokenizer: Tokenizer
) -> None:
    folder, manifest = packed
    tokens = np.full((24, LENGTH + 1), VOCAB_SIZE - 1)
    tokens[WRONG, 5] = VOCAB_SIZE
    records = encode_rows(tokens, np.full(24, 20), "uint16")
    path = forge(folder, manifest, records)
    what = f"holds the id {VOCAB_SIZE}, beyond the vocabulary of {VOCAB_SIZE}"
    stream = RowStream(open_rows(str(folder), tokenizer, LENGTH, 8), BatchShard(8))
    with pytest.raises(UserError) as error, closing(stream):
        for _ in range(3):
            next(stream)
    assert str(error.value) == f"{path}: row {WRONG} {what}: prepare the rows again."
