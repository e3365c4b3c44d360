"""C4 in every layout, made once from the same documents."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.data.seqio_settings import SeqioTasks
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.tokenizer import Tokenizer
from tests.conftest import sentences
from tests.data.c4_layouts import build_tfds, write_json_gz

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

TRAIN = [sentences(seed, 1 + seed % 7) for seed in range(60)] + [
    "é🙂 naïve text\tof tabs\nand lines",
    sentences(3, 120),
]
VALIDATION = [sentences(seed, 2) for seed in range(900, 912)]
SPLITS = {"train": TRAIN, "validation": VALIDATION}


@dataclass(frozen=True)
class C4:
    """Where the documents lie, and a tokenizer for them."""

    tfrecord: Path
    array_record: Path
    json: Path
    tokenizer: Tokenizer

    def tasks(self, **settings: Any) -> SeqioTasks:
        """The settings of the registered tasks, with others."""
        return SeqioTasks(**{"tfds_folder": str(self.tfrecord), **settings})


@pytest.fixture(scope="session")
def c4(tmp_path_factory: pytest.TempPathFactory) -> C4:
    home = tmp_path_factory.mktemp("c4")
    train_tokenizer(TRAIN, 320, home / "tokenizer.model")
    for split, texts in SPLITS.items():
        write_json_gz(texts, home / "json", split, 4)
    build_tfds(SPLITS, home / "tfrecord", "tfrecord")
    array_record = build_tfds(SPLITS, home / "array_record", "array_record")
    tokenizer = Tokenizer(str(home / "tokenizer.model"))
    return C4(home / "tfrecord", array_record, home / "json", tokenizer)
