"""Shared text, tokenizer and rows: small, seeded and made once."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.input.manifest import Manifest
from hyla_lm.input.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PACKED = {"source": "test", "sequence_length": 16, "seed": 0}


def prose(seed: int, sentences: int = 8) -> str:
    """Sentences of made-up words, the same for a seed."""
    rng, words = random.Random(seed), random.Random(0)
    known = ["".join(words.choices(LETTERS, k=words.randint(2, 9))) for _ in range(400)]
    texts = (" ".join(["The", *rng.choices(known, k=9)]) + "." for _ in range(sentences))
    return "\n".join(texts)


def documents_in(rows: np.ndarray, bos: int) -> list[list[int]]:
    """The documents of rows of one shard, BOS first; BOS that fills a row is none."""
    stream = np.append(rows[0, :1], rows[:, 1:])
    parts = np.split(stream, np.flatnonzero(stream == bos))[1:]
    return [part.tolist() for part in parts if len(part) > 1]


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return [prose(seed) for seed in range(60)]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.model"
    train_tokenizer(texts, 512, path)
    return Tokenizer(str(path))


@pytest.fixture(scope="session")
def packed_once(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], tokenizer: Tokenizer
) -> tuple[Path, Manifest]:
    """A folder of rows of the texts in three shards, not to be changed."""
    folder = tmp_path_factory.mktemp("packed") / "rows"
    return folder, write_rows(texts, tokenizer, folder, split="train", shards=3, **PACKED)


@pytest.fixture
def python_root(tmp_path: Path) -> Callable[[int], Path]:
    """Makes a folder of modules, each with a docstring of its own."""

    def make(modules: int) -> Path:
        root = tmp_path / "library"
        root.mkdir()
        for index in range(modules):
            text = prose(index).replace("\n", "\n\n")
            (root / f"m{index}.py").write_text(f'"""{text}"""\n')
        return root

    return make


def with_special(path: Path, **ids: int) -> Tokenizer:
    """A model of prose with these ids of special pieces."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=map(prose, range(9), [3] * 9),
        model_prefix=str(path),
        vocab_size=60,
        minloglevel=2,
        **ids,
    )
    return Tokenizer(f"{path}.model")
