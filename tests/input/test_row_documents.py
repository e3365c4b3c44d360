"""Sums over rows, put together to documents: against a plain loop over the stream of tokens."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyla_lm.input.packing import CONTINUED, Packer, encode_texts, joined, parts_of_rows
from hyla_lm.input.tokenizer import Tokenizer
from tests.conftest import sentences

BOS, EOS, VOCAB = 1, 2, 20
PIECE_BYTES = np.arange(VOCAB, dtype=np.uint32) % 7
PIECE_BYTES[[BOS, EOS]] = 0


def packed(documents: list[list[int]], length: int) -> np.ndarray:
    """Rows of length + 1 with stride length, the last one filled with BOS."""
    stream = [token for ids in documents for token in (BOS, *ids, EOS)]
    count = math.ceil((len(stream) - 1) / length)
    stream += [BOS] * (count * length + 1 - len(stream))
    return np.array([stream[r * length : (r + 1) * length + 1] for r in range(count)], np.int32)


def by_a_plain_loop(tokens: np.ndarray, nats: np.ndarray) -> list[tuple[int, int, float, int]]:
    """Row and place where each document begins, its nats and its targets."""
    found: list[tuple[int, int, float, int]] = []
    for row, (ids, row_nats) in enumerate(zip(tokens, nats, strict=True)):
        for place, (given_id, target) in enumerate(pairwise(ids)):
            if given_id == BOS:
                found.append((row, place, 0.0, 0))
            if target != BOS:
                begun, at, total, count = found[-1]
                found[-1] = (begun, at, total + float(row_nats[place]), count + 1)
    return [one for one in found if one[3]]


def parts(tokens: np.ndarray, nats: np.ndarray, rows: np.ndarray, text_bytes: np.ndarray):
    return parts_of_rows(tokens, text_bytes, rows, nats, PIECE_BYTES, BOS)


@given(
    st.lists(st.lists(st.integers(3, VOCAB - 1), max_size=12), min_size=1, max_size=8),
    st.integers(1, 7),
    st.randoms(use_true_random=False),
)
def test_documents_are_those_of_a_plain_loop(
    documents: list[list[int]], length: int, random: object
) -> None:
    """Whatever batches the rows come in, in whatever order, with padding."""
    tokens = packed(documents, length)
    rng = np.random.default_rng(random.randrange(2**32))  # type: ignore[attr-defined]
    nats = rng.exponential(size=(len(tokens), length)).astype(np.float32)
    nats[tokens[:, 1:] == BOS] = 0
    text_bytes = np.where((tokens[:, 1:] == BOS).all(axis=1), 0, rng.integers(0, 30, len(tokens)))
    numbers = np.arange(len(tokens))
    order = np.append(rng.permutation(len(tokens)), [0, 0])
    shown = np.append(numbers[order[:-2]], [-1, -1])  # two rows of padding
    batches = np.array_split(np.arange(len(order)), 3)
    found = joined(
        [
            parts(tokens[order[b]], nats[order[b]], shown[b], text_bytes[order[b]])
            for b in batches
            if len(b)
        ]
    )
    expected = by_a_plain_loop(tokens, nats)
    assert list(zip(found.row_N, found.place_N, strict=True)) == [one[:2] for one in expected]
    np.testing.assert_array_equal(found.tokens_N, [one[3] for one in expected])
    np.testing.assert_allclose(found.nats_N, [one[2] for one in expected], rtol=1e-12)
    assert len(found) == len(documents)
    assert found.bytes_N.sum() == pytest.approx(text_bytes.sum(), rel=1e-12)


def test_a_missing_row_parts_a_document() -> None:
    tokens = packed([[5] * 14], 4)
    nats, numbers, kept = np.ones((4, 4)), np.arange(4), [0, 1, 3]
    found = joined([parts(tokens[kept], nats[kept], numbers[kept], np.full(3, 4))])
    assert found.row_N.tolist() == [0, 3] and found.tokens_N.tolist() == [8, 3]
    assert found.place_N.tolist() == [0, CONTINUED]


def test_bytes_are_exact_where_documents_fill_rows_and_add_up_to_the_text(
    tokenizer: Tokenizer,
) -> None:
    texts = [sentences(seed, 3) for seed in range(6)]
    packer = Packer(8, tokenizer)
    rows = packer.push(encode_texts(texts, tokenizer))
    last = packer.last()
    tokens = np.concatenate([rows.tokens, last.tokens])
    text_bytes = np.concatenate([rows.text_bytes, last.text_bytes])
    nats = np.zeros((len(tokens), 8))
    numbers = np.arange(len(tokens))
    found = joined(
        [parts_of_rows(tokens, text_bytes, numbers, nats, tokenizer.piece_bytes, tokenizer.bos)]
    )
    sizes = [len(text.encode()) for text in texts]
    assert found.bytes_N.sum() == pytest.approx(sum(sizes), rel=1e-12)
    # Whole rows are exact, so only the rows at a document's two ends are shared, to a byte or two.
    np.testing.assert_allclose(found.bytes_N, sizes, atol=3)
