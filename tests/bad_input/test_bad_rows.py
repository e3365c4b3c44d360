"""Rows and tokenizers that cannot be trained on, as a command says it.

tests/data/test_data_faults.py has every fault of a folder of rows.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.prepared import Rows
from hyla_lm.input.source import Reading
from tests.bad_input.conftest import Reject, bound_to


@pytest.mark.parametrize(
    ("train", "validation", "setting", "remedy"),
    [
        ("train", "train", "Rows.validation = ", "--split=validation"),
        ("test", "validation", "Rows.train = ", "--split=train"),
    ],
)
def test_rows_of_another_split_are_named(
    reject_train: Reject, damaged: Rows, train: str, validation: str, setting: str, remedy: str
) -> None:
    home = Path(damaged.train).parent
    shutil.copytree(damaged.train, home / "test")
    manifest = home / "test" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "split": "test"}))
    rows = replace(damaged, train=str(home / train), validation=str(home / validation))
    line = reject_train(*bound_to(rows))
    assert setting in line and remedy in line


def test_rows_of_a_split_that_is_not_train_may_validate(damaged: Rows) -> None:
    manifest = Path(damaged.validation, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "split": "test"}))
    assert len(damaged.open(16, 8, Reading()).validation.rows) > 0


def test_another_tokenizer_than_that_of_the_rows_is_named(
    reject_train: Reject, tiny_rows: Rows, tmp_path: Path
) -> None:
    other = tmp_path / "other.model"
    train_tokenizer([f"number {n} or {n * n}" for n in range(400)], 320, other)
    line = reject_train(*bound_to(replace(tiny_rows, tokenizer=str(other))))
    assert str(other) in line
    assert str(Path(tiny_rows.train, "manifest.json")) in line
