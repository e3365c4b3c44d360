"""Trained tokenizers: special ids, round trips, the same bytes, code, and a time as the text."""

import random
import string
import time
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.data.train_tokenizer import (
    MAX_PIECE_CHARACTERS,
    distinct_lines,
    sample,
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


def test_a_sample_is_bounded_and_ignores_order(texts: list[str]) -> None:
    chosen = sample(texts, 3000)
    assert 1500 < sum(len(text.encode()) for text in chosen) <= 3000
    assert chosen == sample(reversed(texts), 3000)


def test_command_line(tmp_path: Path, texts: list[str]) -> None:
    source, model = tmp_path / "a.txt", tmp_path / "a.model"
    source.write_text("\n".join(texts))
    options = ["--vocab_size", "512", "--sample_bytes=20000", "--output", str(model)]
    assert main(["data", "tokenizer", "--input", str(source), *options]) == 0
    assert Tokenizer(str(model)).vocab_size == 512


def sources(first: int) -> list[str]:
    """Every twelfth module of the standard library."""
    modules = sorted(Path(random.__file__).parent.glob("*.py"))
    return [path.read_text() for path in modules[first::12]]


def test_code_takes_a_quarter_fewer_tokens_and_comes_back(tmp_path: Path) -> None:
    counts, held_out = {}, sources(1)
    for for_code in (False, True):
        path = tmp_path / f"{for_code}.model"
        train_tokenizer(sources(0), 2000, path, for_code=for_code)
        tokenizer = Tokenizer(str(path))
        ids = tokenizer.encode_batch(held_out)
        assert [tokenizer.decode(one.tolist()) for one in ids] == held_out
        counts[for_code] = sum(map(len, ids))
    assert counts[True] < 0.75 * counts[False]


RUNS = {
    "spaces": lambda n: "x\n" + " " * n + "x",
    "hexadecimal": lambda n: random.Random(0).randbytes(n // 2).hex(),
    "the same text": lambda n: (PLAIN[:20_000] + "\n") * (n // 20_000),
}


@pytest.mark.parametrize("kind", RUNS)
def test_runs_cost_no_more_than_text_of_their_size(
    tmp_path: Path, seconds_of_prose: float, kind: str
) -> None:
    """300,137 characters beside 230,000 of prose, against the prose without them."""
    run = RUNS[kind](300_137)
    assert seconds_to_train([PLAIN, run], tmp_path) < 10 * seconds_of_prose + 1


@pytest.fixture(scope="module")
def seconds_of_prose(tmp_path_factory: pytest.TempPathFactory) -> float:
    folder = tmp_path_factory.mktemp("prose")
    return min(seconds_to_train([PLAIN], folder) for _ in range(2))


def seconds_to_train(texts: list[str], folder: Path) -> float:
    started = time.process_time()
    train_tokenizer(texts, 1000, folder / "a.model", for_code=True)
    return time.process_time() - started


def test_lines_are_short_few_and_in_any_order_the_same() -> None:
    texts = [PLAIN, "=" * 5000, "one line\n" * 99, "word " * 999]
    lines = distinct_lines(texts)
    assert lines == distinct_lines(reversed(texts))
    assert max(map(len, lines)) <= MAX_PIECE_CHARACTERS
    assert lines.count("one line") == 16
