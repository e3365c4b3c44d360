"""Faults found in folders of rows, in files to prepare, in tokenizers and in flags."""

import gzip
import hashlib
import random
import re
import subprocess
import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.data import prepare
from hyla_lm.data.verify import verify
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import MANIFEST, Manifest, Shard, read_manifest, write_manifest
from hyla_lm.input.rows import RowReader, encode_rows
from hyla_lm.input.source import open_rows
from hyla_lm.input.tokenizer import Tokenizer
from tests import preloaded
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.data.conftest import run_command

Packed = tuple[Path, Manifest]
ROOT = Path(__file__).parents[2]


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def check_refused(folder: Path, tokenizer: Tokenizer, what: str) -> None:
    """Neither verify nor a run takes the folder, and both say why."""
    for model in (None, tokenizer):
        with pytest.raises(UserError, match=what):
            verify(str(folder), tokenizer=model)
    with pytest.raises(UserError, match=what):
        open_rows(str(folder), tokenizer, 16, 8)


def test_a_whole_folder_passes(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    assert verify(str(folder)) == verify(str(folder), 2, tokenizer) == manifest


def test_shards_that_are_not_whole_are_named(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    first, second, _ = (folder / shard.name for shard in manifest.shards)
    whole = second.read_bytes()
    for data in (b"", whole[:1], whole[:65_536], whole[:-1], first.read_bytes()):
        second.write_bytes(data)
        check_refused(folder, tokenizer, second.name)
    second.unlink()
    check_refused(folder, tokenizer, f"{second.name} is missing")


def test_verify_finds_a_bit_that_differs_anywhere(packed: Packed) -> None:
    folder, manifest = packed
    chance, shard = random.Random(0), folder / manifest.shards[1].name
    data = shard.read_bytes()
    for _ in range(40):
        shard.write_bytes(flipped(data, chance.randrange(len(data)), chance.randrange(8)))
        with pytest.raises(UserError, match=f"{shard.name} does not have the SHA-256"):
            verify(str(folder))


def test_no_bit_that_differs_changes_what_is_read(packed: Packed, tokenizer: Tokenizer) -> None:
    """A fault shows on opening or at the one record that it hits; what is left is padding."""
    folder, manifest = packed
    chance, shard = random.Random(0), folder / manifest.shards[1].name
    data = shard.read_bytes()
    filled = np.flatnonzero(np.frombuffer(data, np.uint8)).tolist()
    rows = range(manifest.shards[0].rows, sum(shard.rows for shard in manifest.shards[:2]))
    reader, faults = RowReader(folder, manifest), Counter[str]()
    wanted = {row: reader.read([row]) for row in rows}
    for place in [*chance.choices(filled, k=60), *chance.choices(range(len(data)), k=20)]:
        shard.write_bytes(flipped(data, place, chance.randrange(8)))
        try:
            damaged = open_rows(str(folder), tokenizer, 16, 8)[0].rows
        except UserError as error:
            assert shard.name in str(error)
            faults["open"] += 1
            continue
        for row in rows:
            try:
                read = damaged.read([row])
                assert all((read[name] == wanted[row][name]).all() for name in read)
            except UserError as error:
                assert f"{shard.name}: record {row - rows[0]} is damaged" in str(error)
                faults["record"] += 1
    assert faults["open"] > 0 and sum(faults.values()) >= 60


@pytest.mark.parametrize("name", ["rows", "tokens", "documents", "text_bytes", "max_token_id"])
def test_counts_that_are_off_by_one_are_named(packed: Packed, name: str) -> None:
    folder, manifest = packed
    for offset in (-1, 1):
        write_manifest(folder, replace(manifest, **{name: getattr(manifest, name) + offset}))
        with pytest.raises(UserError, match=f"manifest.json counts .* {name} but its shards hold"):
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
    counts = ("rows", "tokens", "documents", "text_bytes")
    twice: dict[str, Any] = {name: 2 * getattr(manifest, name) for name in counts}
    for changed in (
        replace(manifest, shards=manifest.shards * 2, **twice),
        replace(manifest, shards=(), rows=0, tokens=0, documents=0, text_bytes=0, max_token_id=0),
        replace(manifest, special_ids={}),
        replace(manifest, dtype="uint32"),
    ):
        write_manifest(folder, changed)
        check_refused(folder, tokenizer, MANIFEST)


def forge(folder: Path, manifest: Manifest, records: list[bytes], **facts) -> Path:
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
    records = [reader._record(row) for row in range(20)]
    path = forge(folder, manifest, [*records[:9], records[9][:-2], *records[10:]])
    with pytest.raises(UserError, match=f"{path.name} holds a row of 36 bytes, not 38"):
        verify(str(folder))
    rows = open_rows(str(folder), tokenizer, 16, 8)[0].rows
    assert (rows.read([8])["tokens"] == reader.read([8])["tokens"]).all()
    with pytest.raises(UserError, match=f"{path.name}: row 9 has 36 bytes"):
        rows.read([9])


@pytest.mark.parametrize(
    ("vocab_size", "dtype", "token"),
    [(512, "uint16", 512), (512, "uint16", 2**16 - 1), (70_000, "uint32", 2**31 + 5)],
)
def test_an_id_beyond_the_vocabulary_is_named(
    packed: Packed, tokenizer: Tokenizer, vocab_size: int, dtype: str, token: int
) -> None:
    folder, manifest = packed
    records = encode_rows(np.array([[7] * 9 + [token] + [7] * 7]), np.ones(1, np.int64), dtype)
    path = forge(folder, manifest, records, vocab_size=vocab_size, dtype=dtype)
    with pytest.raises(UserError, match=f"{path.name} holds the id {token}, beyond the vocabulary"):
        verify(str(folder))
    forge(folder, manifest, records, max_token_id=token)
    with pytest.raises(UserError, match=f"vocabulary 512 and ids up to {token}"):
        open_rows(str(folder), tokenizer, 16, 8)


def prepared(tokenizer: Tokenizer, folder: Path, *inputs: Path) -> Manifest:
    """The rows of some files in one shard, which would not show a file that is left out."""
    files = ["--input", *map(str, inputs), "--output", str(folder), "--shards=1", "--workers=1"]
    run_command(prepare, [*files, "--sequence_length=16", "--tokenizer", tokenizer.path])
    return read_manifest(folder)


def test_damaged_files_are_named(tmp_path: Path, texts: list[str], tokenizer: Tokenizer) -> None:
    whole = write_json_gz(texts, tmp_path, "train", 1)[0]
    zipped = whole.read_bytes()
    records = write_array_records(texts, tmp_path, "train", 1)[0].read_bytes()
    for name, data, reason in (
        ("cut.json.gz", zipped[:-9], "is cut short"),
        ("zero.json.gz", b"", "is cut short"),
        ("flipped.json.gz", flipped(zipped, len(zipped) // 2), "is damaged"),
        ("bad.json.gz", gzip.compress(b'{"text": "a"}\n{"text": "b\n'), "line 2 holds no text"),
        ("null.jsonl", b'\n{"text": null}', "line 2 holds no text"),
        ("code.jsonl", b'{"text": "\xff"}', "line 1 holds no text"),
        ("code.txt", b"\xff", "is not UTF-8"),
        ("cut.array_record", records[:-1], "is damaged"),
        ("half.array_record", records[: len(records) // 2], "is damaged"),
        ("zero.array_record", b"", "is damaged"),
        ("flipped.array_record", flipped(records, 200), "is damaged"),
        ("text.csv", b"a", "is of no known format"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UserError, match=f".*{name}.* {reason}"):
            prepared(tokenizer, tmp_path / f"rows of {name}", whole, tmp_path / name)
        assert not (tmp_path / f"rows of {name}" / MANIFEST).exists()


@pytest.mark.parametrize("write", [write_json_gz, write_array_records])
def test_no_bit_that_differs_in_a_file_changes_the_rows(
    tmp_path: Path, texts: list[str], tokenizer: Tokenizer, write
) -> None:
    chance, file = random.Random(0), write(texts[:9], tmp_path, "train", 1)[0]
    wanted, data, damaged = prepared(tokenizer, tmp_path / "whole", file), file.read_bytes(), 0
    filled = np.flatnonzero(np.frombuffer(data, np.uint8)).tolist()
    for number in range(40):
        file.write_bytes(flipped(data, chance.choice(filled), chance.randrange(8)))
        try:
            assert prepared(tokenizer, tmp_path / str(number), file) == wanted
        except UserError as error:
            assert file.name in str(error)
            damaged += 1
    assert damaged > 30


def with_special(path: Path, texts: list[str], **ids: Any) -> Tokenizer:
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path), vocab_size=60, minloglevel=2, **ids
    )
    return Tokenizer(f"{path}.model")


def test_without_bos_documents_start_with_pad(tmp_path: Path, texts: list[str]) -> None:
    tokenizer = with_special(tmp_path / "t5", texts, bos_id=-1, eos_id=1, pad_id=0, unk_id=2)
    file = write_json_gz([*texts, ""], tmp_path, "train", 1)[0]
    manifest = prepared(tokenizer, tmp_path / "rows", file)
    assert manifest.special_ids == {"bos": -1, "eos": 1, "pad": 0, "unk": 2}
    assert manifest == verify(str(tmp_path / "rows"), tokenizer=tokenizer)
    rows = RowReader(tmp_path / "rows", manifest).read(range(manifest.rows))["tokens"]
    stream = np.append(rows[0, :1], rows[:, 1:]).tolist()
    wanted = [token for text in [*texts, ""] for token in (0, *tokenizer.encode(text), 1)]
    assert stream == wanted + [0] * (len(stream) - len(wanted))


def test_without_what_marks_documents_a_tokenizer_is_refused(
    tmp_path: Path, texts: list[str]
) -> None:
    file = write_json_gz(texts, tmp_path, "train", 1)[0]
    for lacking in ({"bos_id": -1, "pad_id": -1}, {"eos_id": -1}):
        tokenizer = with_special(tmp_path / "some", texts, **lacking)
        with pytest.raises(UserError, match="some.model lacks EOS, or both BOS and PAD"):
            prepared(tokenizer, tmp_path / "rows", file)
        assert not (tmp_path / "rows").exists()


FLAGS = "--input=IN/c4-train.*", "--output=OUT", "--tokenizer=MODEL", "--sequence_length=16"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare", *FLAGS, "--bogus=1"], "--bogus=1 is unknown"),
        (["prepare", *FLAGS, "--sequence_length=many"], "invalid int value: 'many'"),
        (["prepare", *FLAGS, "--sequence_length=0"], "--sequence_length=0 must be at least 1"),
        (["prepare", *FLAGS, "--shards=0"], "--shards=0 must be at least 1"),
        (["prepare", *FLAGS, "--shards=4"], "--shards=4 is no multiple of the 3 files"),
        (["prepare", *FLAGS, "--tokenizer=absent"], "tokenizer absent does not exist"),
        (["prepare", *FLAGS, "--input", "IN/c4*", "IN/*00003*"], "00000-of-00003.json.gz twice"),
        (["prepare", *FLAGS, "--input=IN/cut.*"], "shard 00001 of the 2 of"),
        (["prepare", *FLAGS, "--output=IN"], "IN holds other files: give a new folder"),
        (["prepare", *FLAGS, "--output=IN/cut.00000-of-00002.txt"], "cannot be written"),
        (["verify", "OUT", "--bogus"], "--bogus"),
        (["verify", "OUT"], "OUT/manifest.json does not exist"),
        (["verify", "OUT", "--tokenizer=absent"], "does not exist"),
    ],
)
def test_commands_fail_in_one_line_and_change_nothing(
    tmp_path: Path, tokenizer: Tokenizer, arguments: list[str], said: str
) -> None:
    write_json_gz(["a"] * 3, tmp_path / "IN", "train", 3)
    (tmp_path / "IN" / "cut.00000-of-00002.txt").write_text("a")
    places = {"IN": tmp_path / "IN", "OUT": tmp_path / "OUT", "MODEL": tokenizer.path}
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = run(*(re.sub("IN|OUT|MODEL", lambda m: str(places[m[0]]), a) for a in arguments))
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert re.search(f"(error|data.{arguments[0]}): .*{re.escape(said)}.*\n$", done.stderr)


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"data.{module}", *arguments]
    return preloaded.run(command, cwd=ROOT, capture_output=True, text=True)


def test_commands_say_what_they_take_and_found(packed: Packed) -> None:
    for module in ("prepare", "verify"):
        assert run(module, "--help").stdout.startswith(f"usage: python -m data.{module}")
    done = run("verify", str(packed[0]), "absent")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stdout.startswith(f"{packed[0]} is whole. train: 60 documents, ")
    assert done.stderr.startswith("python -m data.verify: absent/manifest.json does not exist")
