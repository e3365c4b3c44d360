"""The trained tokenizer: special ids, round trips, determinism and the command line."""

from pathlib import Path

import pytest

from hyla_lm.data.train_tokenizer import main, sample, train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer


def test_special_ids(tokenizer: Tokenizer) -> None:
    processor = tokenizer.processor
    ids = processor.pad_id(), processor.eos_id(), processor.bos_id(), processor.unk_id()
    assert ids == (0, 1, 2, 3)
    assert tokenizer.vocab_size == 512


@pytest.mark.parametrize(
    "text",
    [
        "The word.",
        "One line.\nAnother line.\n\nA third.\n",
        "  two  spaces  and\ttab ",
        "\n\nnewlines first",
        "naïve Ünïcode – 漢字 🙂, ﬁ and ½",
        "<s> </s> <unk> <0x41>",
        "",
    ],
)
def test_text_round_trips(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not {0, 1, 2, 3} & set(ids)


def test_training_repeats_bytewise(tmp_path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    train_tokenizer(reversed(texts), 512, tmp_path / "new" / "again.model")
    assert Tokenizer(str(tmp_path / "new" / "again.model")).sha256 == tokenizer.sha256


def test_sample_is_bounded_and_ignores_order(texts: list[str]) -> None:
    chosen = sample(texts, 3000)
    assert 1500 < sum(len(text.encode()) for text in chosen) <= 3000
    assert chosen == sample(reversed(texts), 3000)


def test_long_lines_are_not_dropped(tmp_path: Path, texts: list[str]) -> None:
    train_tokenizer([" ".join(texts).replace("\n", " ")], 512, tmp_path / "a.model")


@pytest.mark.parametrize("vocab_size", [100, 50_000])
def test_unfit_vocabulary(tmp_path: Path, texts: list[str], vocab_size: int) -> None:
    with pytest.raises(UserError, match=f"vocab_size = {vocab_size} "):
        train_tokenizer(texts, vocab_size, tmp_path / "a.model")
    assert not list(tmp_path.iterdir())


def test_no_text(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without text"):
        train_tokenizer([], 512, tmp_path / "a.model")


def test_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], texts: list[str], tokenizer: Tokenizer
) -> None:
    source, model = tmp_path / "a.txt", tmp_path / "a.model"
    source.write_text("\n".join(texts))
    arguments = ["--input", str(source), "--vocab_size", "512", "--output", str(model)]
    assert main(arguments) == 0
    assert Tokenizer(str(model)).vocab_size == 512
    assert main(["--input", "none", "--output", "x"]) == 2
    assert "--input = none matches no file" in capsys.readouterr().err
