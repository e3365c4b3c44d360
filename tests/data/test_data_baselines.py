"""Bigram probabilities against arithmetic by hand, and compressors against themselves."""

import math
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.baselines import (
    Bigram,
    bigram_bits_per_byte,
    compressor_bits_per_byte,
    count_bigrams,
)
from hyla_lm.data.preparation import write_rows
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.conftest import PACKED


def test_by_hand() -> None:
    """Pairs 01 (3 times), 02 and 12 (once each) over four tokens: d = 2 / 2 = 1."""
    bigram = Bigram(4, np.array([1, 2, 6]), np.array([3, 1, 1]))
    assert bigram.discount == 1.0
    lower = np.array([1, 2, 3, 1]) / 7
    first = (np.array([0, 2, 0, 0]) + 2 * lower) / 4
    table = bigram.probability(np.repeat(np.arange(4), 4), np.tile(np.arange(4), 4))
    np.testing.assert_allclose(table.reshape(4, 4), [first, lower, lower, lower], rtol=1e-12)


def test_rows_count_every_pair_and_sum_to_one(
    tmp_path: Path, texts: list[str], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyla_lm.data.baselines.ROWS_PER_CHUNK", 7)
    train = write_rows(texts[:50], tokenizer, tmp_path / "t", split="train", **PACKED)
    manifest = write_rows(texts[50:], tokenizer, tmp_path / "v", split="validation", **PACKED)
    rows = RowReader(tmp_path / "t", train)
    bigram = count_bigrams(rows, 512, tokenizer.bos)
    assert bigram.counts.sum() == train.tokens
    everything = np.arange(512)
    for context in (tokenizer.bos, tokenizer.eos, 0, 5, int(rows.read([0])["tokens"][0, 1]), 511):
        table = bigram.probability(np.full(512, context), everything)
        assert math.isclose(table.sum(), 1.0, rel_tol=1e-12) and table.min() > 0
    validation = RowReader(tmp_path / "v", manifest)
    bits = bigram_bits_per_byte(rows, validation, manifest, tokenizer.bos)
    nats = 0.0
    for tokens in validation.read(range(manifest.rows))["tokens"]:
        previous, following = tokens[:-1], tokens[1:]
        weighed = following != tokenizer.bos
        nats -= np.log(bigram.probability(previous[weighed], following[weighed])).sum()
    assert math.isclose(bits, nats / math.log(2) / manifest.text_bytes, rel_tol=1e-12)
    assert bits < 4


def test_compressors(texts: list[str]) -> None:
    once, twice = compressor_bits_per_byte(texts), compressor_bits_per_byte(texts * 2)
    assert set(once) == {"gzip -9", "xz -9"}
    assert all(twice[name] < bits < 8 for name, bits in once.items())
