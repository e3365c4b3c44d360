"""hyla-lm describe: all settings, those that a word finds, what a gin file says."""

from pathlib import Path

import pytest

from hyla_lm.attention.attend import VARIANTS
from hyla_lm.cli.main import main

PAGE = (Path(__file__).parents[1] / "docs" / "settings_howto.md").read_text()


def described(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["describe", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_without_a_word_all_are_listed_by_subject(capsys: pytest.CaptureFixture[str]) -> None:
    text = described(capsys)
    titles = ["The run", "The model", "Language models and their text", "Evaluation tasks"]
    places = [text.index(f"{title}") for title in titles]
    assert places == sorted(places)
    for name in ("TrainConfig", "SampleCorpus", "SeqioTask", "Sraven", "FuzzyLogicSuite"):
        assert f"\n{name}: " in text


def test_a_word_shows_the_settings_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    text = described(capsys, "learning_rate")
    assert "  OptimizerConfig.learning_rate: float = 0.001\n      peak learning rate" in text
    assert "TrainConfig" not in text
    text = described(capsys, "attention")
    assert all(f"        {name}: {spec.explained()}\n" in text for name, spec in VARIANTS.items())


def test_a_file_shows_its_macros_and_who_sets_what(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    base, mine = tmp_path / "base.gin", tmp_path / "mine.gin"
    base.write_text("# A base.\nLENGTH = 16\nLanguageModel.sequence_length = %LENGTH\n")
    mine.write_text(
        f"# Mine.\n# Two lines.\ninclude '{base}'\nimport hyla_lm.evals.suites\nLENGTH = 8\n"
        "TrainConfig.task = @LanguageModel()\nshort/Rows.train = 'a'\n"
    )
    top, macros, settings = described(capsys, str(mine)).split("\n\n")
    assert top.splitlines()[1:] == [
        *("  Mine.", "  Two lines."),
        *(f"  includes {base}", "  imports hyla_lm.evals.suites"),
    ]
    assert macros.splitlines()[1:] == ["  LENGTH = 8"]
    assert settings.splitlines()[1:] == [
        f"  LanguageModel.sequence_length = %LENGTH  # {base}",
        "  TrainConfig.task = @LanguageModel()",
        "  short/Rows.train = 'a'",
    ]


def test_a_gin_file_of_the_package_is_found_from_any_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "SEQUENCE_LENGTH = 64  # gin/quickstart.gin" in described(
        capsys, "gin/quickstart_softmax.gin"
    )


def test_the_page_describes_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("ModelConfig", "attention", "gin/quickstart.gin"):
        assert f"`hyla-lm describe {word}`" in PAGE
        assert described(capsys, word)
