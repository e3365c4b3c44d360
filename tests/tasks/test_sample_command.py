"""hyla-lm sample and score on a trained run of rows of 16 tokens."""

import json
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

SHORT = ["TrainConfig.steps=3", "ModelConfig.attention=('linear','softmax')"]
SHORT += ["ModelConfig.num_layers=2"]


@pytest.fixture(scope="module")
def workdir(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("sampled")
    assert train(write_gin(home, tiny_rows), home / "run", *SHORT) == 0
    return home / "run"


@pytest.fixture
def said(workdir: Path, capsys: pytest.CaptureFixture[str]):
    """Runs a command that must succeed; returns what it prints."""

    def run(command: str, *flags: str) -> str:
        capsys.readouterr()
        assert main([command, f"--workdir={workdir}", *flags]) == 0
        return capsys.readouterr().out

    return run


def test_the_defaults_sample_beyond_the_row(said) -> None:
    [found] = map(json.loads, said("sample", "--prompt=ba", "--json").splitlines())
    assert len(found["tokens"]) == 64 or found["ended"]
    assert len(found["tokens"]) > 16
    assert said("sample", "--prompt=ba") == f"ba{found['text']}\n"


def test_several_texts_are_told_apart(said, tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("ki\r\n\n")
    asked = ["--prompt=ba", f"--prompts_file={tmp_path / 'prompts'}", "--samples=2"]
    found = [json.loads(line) for line in said("sample", *asked, "--json").splitlines()]
    assert [each["prompt"] for each in found] == ["ba", "ba", "ki", "ki", "", ""]
    assert set(found[0]) == {"prompt", "text", "tokens", "log_probability", "ended"}
    assert found[0]["text"] != found[1]["text"]
    expected = [
        f"--- {number} of 6 ---\n{each['prompt']}{each['text']}\n"
        for number, each in enumerate(found, 1)
    ]
    assert said("sample", *asked) == "".join(expected)


def test_a_text_is_scored_in_all_and_token_by_token(said, tmp_path: Path) -> None:
    text = "bast ten ba mu " * 9
    (tmp_path / "text").write_text(text)
    found = json.loads(said("score", f"--text={text}", "--json"))
    assert found["text_bytes"] == len(text)
    assert found["token_count"] == len(found["tokens"]) > 16
    assert found["nats"] == pytest.approx(sum(each["nats"] for each in found["tokens"]))
    whole = said("score", f"--input={tmp_path / 'text'}")
    assert whole.startswith(f"{found['nats']:.4f} nats, {found['bits_per_byte']:.4f} bits per byte")
