"""Trained tokenizers: special ids, round trips, the same bytes, code, and a time as the text."""

import random
import string

from hyla_lm.data.train_tokenizer import MAX_PIECE_CHARACTERS, distinct_lines
from hyla_lm.input.tokenizer import Tokenizer


def plain_text(lines: int) -> str:
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(3000)]
    return "".join(" ".join(rng.choices(words, k=18)) + "\n" for _ in range(lines))


PLAIN = plain_text(2000)


def test_special_ids_and_text_that_comes_back(tokenizer: Tokenizer) -> None:
    assert tokenizer.special_ids == {"pad": 0, "eos": 1, "bos": 2, "unk": 3}
    assert tokenizer.vocab_size == 512
    for text in (
        "One line.\nAnother line.\n\nA third.\n",
        "  two  spaces  and\ttab ",
        "\n\nnewlines first",
        "naïve Ünïcode – 漢字 🙂, ﬁ and ½",
        "<s> </s> <unk> <0x41>",
        "",
    ):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not {0, 1, 2, 3} & set(ids)


def test_lines_are_short_few_and_in_any_order_the_same() -> None:
    texts = [PLAIN, "=" * 5000, "one line\n" * 99, "word " * 999]
    lines = distinct_lines(texts)
    assert lines == distinct_lines(reversed(texts))
    assert max(map(len, lines)) <= MAX_PIECE_CHARACTERS
    assert lines.count("one line") == 16
