"""Trained tokenizers: special ids, round trips, the same bytes, code, and a time as the text."""

import random
import string
import time
from pathlib import Path

from hyla_lm.data.train_tokenizer import (
    MAX_PIECE_CHARACTERS,
    distinct_lines,
    train_tokenizer,
)
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


def test_training_repeats_bytewise(tmp_path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    train_tokenizer(reversed(texts), 512, tmp_path / "new" / "again.model")
    assert Tokenizer(str(tmp_path / "new" / "again.model")).sha256 == tokenizer.sha256


def test_a_run_of_spaces_costs_no_more_than_text_of_its_size(tmp_path: Path) -> None:
    def seconds_to_train(*texts: str) -> float:
        started = time.process_time()
        train_tokenizer(texts, 1000, tmp_path / "a.model", for_code=True)
        return time.process_time() - started

    of_prose = min(seconds_to_train(PLAIN) for _ in range(2))
    assert seconds_to_train(PLAIN, "x\n" + " " * 300_137 + "x") < 10 * of_prose + 1


def test_lines_are_short_few_and_in_any_order_the_same() -> None:
    texts = [PLAIN, "=" * 5000, "one line\n" * 99, "word " * 999]
    lines = distinct_lines(texts)
    assert lines == distinct_lines(reversed(texts))
    assert max(map(len, lines)) <= MAX_PIECE_CHARACTERS
    assert lines.count("one line") == 16
