"""Rows, manifests and tokenizers that cannot be trained on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.prepared import Rows
from hyla_lm.input.source import Reading
from tests.bad_input.conftest import Reject, bound_to


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "zeros"])
def test_a_damaged_shard_is_named(
    reject_train: Reject, damaged: Rows, split: str, damage: str
) -> None:
    shard = sorted(Path(getattr(damaged, split)).glob("*.arrayrecord"))[-1]
    content = shard.read_bytes()
    if damage == "missing":
        shard.unlink()
    else:
        kept = {"empty": b"", "truncated": content[:-1], "zeros": bytes(len(content))}
        shard.write_bytes(kept[damage])
    named = shard.parent if damage == "zeros" else shard
    assert str(named) in reject_train(*bound_to(damaged))


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"shards": [1]}', "\x00"], ids=repr)
def test_a_file_that_is_no_manifest_is_named(
    reject_train: Reject, damaged: Rows, split: str, text: str
) -> None:
    manifest = Path(getattr(damaged, split), "manifest.json")
    manifest.write_text(text)
    assert str(manifest) in reject_train(*bound_to(damaged))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", 1),
        ("rows", "535"),
        ("shards", []),
        ("format", 1),
        ("dtype", "uint32"),
        ("vocab_size", 321),
        ("max_token_id", 320),
        ("max_token_id", None),
        ("surplus", 1),
        ("format", "2"),
        ("sequence_length", 0),
        ("sequence_length", 2**64),
        ("rows", True),
        ("rows", 535.0),
        ("tokens", 0),
        ("tokens", -1),
        ("text_bytes", 2**63),
        ("split", None),
        ("source", ["tests"]),
        ("special_ids", {"bos": "1"}),
        ("seed", 0.5),
        ("tokenizer_sha256", "0" * 63),
        ("baselines_bits_per_byte", {"gzip": "2"}),
        ("baselines_bits_per_byte", {"gzip": 10**400}),
        ("baselines_bits_per_byte", {"gzip": float("nan")}),
    ],
    ids=repr,
)
def test_a_manifest_that_contradicts_its_rows_is_named(
    reject_train: Reject, damaged: Rows, field: str, value: object
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), field: value}))
    assert str(manifest) in reject_train(*bound_to(damaged))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "../train/train-00000-of-00003.arrayrecord"),
        ("name", "/etc/passwd"),
        ("name", "gs://bucket/shard"),
        ("name", "a\\b"),
        ("name", ".."),
        ("name", ""),
        ("name", "a\nb"),
        ("name", "\ud800"),
        ("name", "é" * 128),
        ("name", 7),
        ("size_bytes", 0),
        ("rows", -1),
        ("rows", 2**31),
        ("first_row_crc32", 2**32),
        ("sha256", "A" * 64),
        ("sha256", "../" * 21 + "a"),
        ("sha256", None),
        ("surplus", 1),
    ],
    ids=ascii,
)
def test_a_shard_of_a_manifest_that_cannot_be_is_named(
    reject_train: Reject, damaged: Rows, field: str, value: object
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    fields = json.loads(manifest.read_text())
    fields["shards"][1][field] = value
    manifest.write_text(json.dumps(fields))
    line = reject_train(*bound_to(damaged))
    assert f"{manifest} is no rows manifest (" in line and field in line


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"format": 2, "format": 2}', "it names a field twice"),
        ('{"format": NaN}', "NaN is no number"),
        ('{"format": ' + "[" * 100_000, "recursion"),
        ('{"format": ' + "9" * 5000 + "}", "4300 digits"),
    ],
    ids=["repeats", "nan", "deep", "huge"],
)
def test_text_that_is_no_manifest_is_told_why(
    reject_train: Reject, damaged: Rows, text: str, reason: str
) -> None:
    manifest = Path(damaged.validation, "manifest.json")
    manifest.write_text(text)
    line = reject_train(*bound_to(damaged))
    assert f"{manifest} is no rows manifest (" in line and reason in line


@pytest.mark.parametrize(
    ("train", "validation", "setting", "remedy"),
    [
        ("train", "train", "Rows.train = ", "hold the same rows"),
        ("validation", "validation", "Rows.train = ", "hold the same rows"),
        ("validation", "train", "Rows.train = ", "the split 'validation'"),
        ("test", "validation", "Rows.train = ", "--split=train"),
        ("train", "copy", "Rows.validation = ", "--split=validation"),
    ],
)
def test_rows_of_another_split_are_named(
    reject_train: Reject, damaged: Rows, train: str, validation: str, setting: str, remedy: str
) -> None:
    home = Path(damaged.train).parent
    for folder, changed in (("test", {"split": "test"}), ("copy", {"source": "a copy"})):
        shutil.copytree(damaged.train, home / folder)
        manifest = home / folder / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **changed}))
    rows = replace(damaged, train=str(home / train), validation=str(home / validation))
    line = reject_train(*bound_to(rows))
    assert setting in line and remedy in line


def test_rows_of_a_split_that_is_not_train_may_validate(damaged: Rows) -> None:
    manifest = Path(damaged.validation, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "split": "test"}))
    assert len(damaged.open(16, 8, Reading()).validation.rows) > 0


def test_missing_rows_are_named(reject_train: Reject, damaged: Rows) -> None:
    shutil.rmtree(damaged.train)
    assert str(Path(damaged.train, "manifest.json")) in reject_train(*bound_to(damaged))


def test_another_tokenizer_than_that_of_the_rows_is_named(
    reject_train: Reject, tiny_rows: Rows, tmp_path: Path
) -> None:
    other = tmp_path / "other.model"
    train_tokenizer([f"number {n} or {n * n}" for n in range(400)], 320, other)
    line = reject_train(*bound_to(replace(tiny_rows, tokenizer=str(other))))
    assert str(other) in line
    assert str(Path(tiny_rows.train, "manifest.json")) in line


@pytest.mark.parametrize(
    "content", [b"", b"no model\n", bytes(100)], ids=["empty", "text", "zeros"]
)
def test_a_file_that_is_no_tokenizer_is_named(
    reject_train: Reject, tiny_rows: Rows, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "no.model"
    path.write_bytes(content)
    assert str(path) in reject_train(*bound_to(replace(tiny_rows, tokenizer=str(path))))
