"""Trained tokenizers: special ids, round trips, the same bytes, code, and a time as the text."""

import random
import string
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyla_lm.data.train_tokenizer import MAX_PIECE_CHARACTERS, distinct_lines, train_tokenizer
from hyla_lm.input.tokenizer import Tokenizer


def plain_text(lines: int) -> str:
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(3000)]
    return "".join(" ".join(rng.choices(words, k=18)) + "\n" for _ in range(lines))


PLAIN = plain_text(2000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Tokenizer]:
    """The tokenizer of at most 700 pieces that `data prepare --train_tokenizer` makes of a text."""

    def train(text: str) -> Tokenizer:
        path = tmp_path_factory.mktemp("trained") / "tokenizer.model"
        train_tokenizer([text], 700, path, for_code=True, at_most=True)
        return Tokenizer(str(path))

    return train


@pytest.fixture(scope="module")
def of_prose(trained: Callable[[str], Tokenizer]) -> Tokenizer:
    return trained(PLAIN)


@given(st.text() | st.text(alphabet="a \t\n\r\v\x1b_\u2581<s>"))
def test_any_text_comes_back(tokenizer: Tokenizer, of_prose: Tokenizer, text: str) -> None:
    for each in (of_prose, tokenizer):
        ids = each.encode(text)
        assert not {0, 1, 2, 3} & set(ids)
        assert each.decode(ids) == (text if each is of_prose else text.replace("\u2581", " "))
        assert each.special_ids == {"pad": 0, "eos": 1, "bos": 2, "unk": 3}


def test_a_table_takes_as_many_tokens_with_tabs(trained: Callable[[str], Tokenizer]) -> None:
    rng = random.Random(0)
    rows = [rng.choices(["8", "9", "up", "down"], k=9) for _ in range(2000)]
    tables = ["\n".join(map(sign.join, rows)) for sign in "\t;"]
    with_tabs, with_signs = (len(trained(table).encode(table)) for table in tables)
    assert with_tabs < 1.02 * with_signs


def test_more_characters_than_pieces(trained: Callable[[str], Tokenizer]) -> None:
    """The frequent ones have pieces, the others are bytes."""
    syllables = [chr(0xAC00 + n) for n in range(2000)]
    rng = random.Random(0)
    text = "".join(rng.choices(syllables, [1 / (n + 1) for n in range(2000)], k=40_000))
    tokenizer = trained(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) < 1.5 * len(text)


def test_lines_are_short_few_and_in_any_order_the_same() -> None:
    texts = [PLAIN, "=" * 5000, "one line\n" * 99, "word " * 999]
    lines = distinct_lines(texts)
    assert lines == distinct_lines(reversed(texts))
    assert max(map(len, lines)) <= MAX_PIECE_CHARACTERS
    assert lines.count("one line") == 16
