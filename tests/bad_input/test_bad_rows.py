"""Rows, manifests and tokenizers that cannot be trained on."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from data.train_tokenizer import train_tokenizer
from hyla_lm.input.prepared import Rows
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
    ],
)
def test_a_manifest_that_contradicts_its_rows_is_named(
    reject_train: Reject, damaged: Rows, field: str, value: object
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), field: value}))
    assert str(manifest) in reject_train(*bound_to(damaged))


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
