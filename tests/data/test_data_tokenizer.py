"""Trained tokenizers: special ids, round trips, the same bytes, code, and a time as the text."""

import random
from functools import cache
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from hyla_lm.data.train_tokenizer import MAX_PIECE_CHARACTERS, distinct_lines, train_tokenizer
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.conftest import prose

PLAIN = prose(0, 1000)


@cache
def trained(text: str) -> Tokenizer:
    """The tokenizer of at most 700 pieces that `data prepare --train_tokenizer` makes of a text."""
    with TemporaryDirectory() as folder:
        tokenizer = Tokenizer(f"{folder}/tokenizer.model")
        train_tokenizer([text], 700, tokenizer.path, for_code=True, at_most=True)
        assert tokenizer.processor
    return tokenizer


@given(st.text() | st.text(alphabet="a \t\n\r\v\x1b_\u2581<s>"))
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    for each, wanted in ((trained(PLAIN), text), (tokenizer, text.replace("\u2581", " "))):
        ids = each.encode(text)
        assert not {0, 1, 2, 3} & set(ids)
        assert each.decode(ids) == wanted
        assert each.special_ids == {"pad": 0, "eos": 1, "bos": 2, "unk": 3}


def test_a_table_takes_as_many_tokens_with_tabs() -> None:
    rng = random.Random(0)
    rows = [rng.choices(["8", "9", "up", "down"], k=9) for _ in range(2000)]
    tables = ["\n".join(map(sign.join, rows)) for sign in "\t;"]
    with_tabs, with_signs = (len(trained(table).encode(table)) for table in tables)
    assert with_tabs < 1.02 * with_signs


def test_more_characters_than_pieces() -> None:
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
