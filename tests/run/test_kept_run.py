"""A run's folder is enough to sample, score, export and load; other readers find its rows."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hyla_lm
from hyla_lm.cli.main import main
from hyla_lm.input.prepared import Rows
from tests.tiny_runs import copied, train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")
TEXT = "bast ten ba"
RELATIVE = Rows("rows/train", "rows/validation", "rows/tokenizer.model")
MORE = "LanguageModel.validation_sets = ('other=rows/validation',)\nTrainConfig.steps = 5"
Said = Callable[..., str]


@pytest.fixture
def home(tiny_rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with rows, and a run of 5 steps whose gin file has paths from here."""
    home = tmp_path / "home"
    copied(tiny_rows, home / "rows")
    monkeypatch.chdir(home)
    assert train(write_gin(home, RELATIVE, MORE), "run") == 0
    return home


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    """What a command prints, which must succeed."""

    def run(*arguments: str) -> str:
        capsys.readouterr()
        assert main(list(arguments)) == 0
        return capsys.readouterr().out

    return run


def all_of(run: Path, said: Said) -> list[Any]:
    """What a run says, exports and computes."""
    flags = {"sample": f"--prompt={TEXT}", "score": f"--text={TEXT}"}
    printed = [said(command, f"--workdir={run}", flag) for command, flag in flags.items()]
    out = run.parent / f"{run.name}_exported"
    said("export", f"--workdir={run}", f"--output={out}")
    exported = {path.name: path.read_bytes() for path in out.iterdir()}
    return [*printed, exported, hyla_lm.load(run).logits(TEXT).tobytes()]


def test_a_copied_run_gives_the_same_bits_without_its_rows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    earlier = shutil.copytree(home / "run", home / "earlier")
    (earlier / "tokenizer.model").unlink()  # as versions left a run that kept none
    of_earlier = all_of(earlier, said)
    copy = shutil.copytree(home / "run", tmp_path / "copy")
    shutil.rmtree(home)
    monkeypatch.chdir(tmp_path)
    assert all_of(copy, said) == of_earlier
    (copy / "tokenizer.model").write_bytes(b"another")
    assert main(["sample", f"--workdir={copy}"]) == 2


def test_paths_of_a_run_are_from_where_it_began_and_bindings_from_here(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    metrics = said("evaluate", "--workdir=run")
    monkeypatch.chdir(tmp_path)
    assert said("evaluate", f"--workdir={home}/run") == metrics
    assert "other_loss_nats" in json.loads(metrics)
    (home / "rows").rename("moved")
    names = {"train": "train", "validation": "validation", "tokenizer": "tokenizer.model"}
    flags = [f"--gin.Rows.{field}=moved/{name}" for field, name in names.items()]
    flags += ["--gin.LanguageModel.validation_sets=other=moved/validation"]
    assert said("evaluate", f"--workdir={home}/run", *flags) == metrics


def test_a_run_is_resumed_by_its_own_settings_and_names_those_that_changed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.chdir(tmp_path)
    run, longer = f"--workdir={home}/run", "--gin.TrainConfig.steps=9"
    changed = [line.partition(": ")[2] for line in said("train", run, longer).splitlines()]
    assert "TrainConfig.steps 5 became 9" in changed
    assert "the learning rate of the next update 0.001 became 0.0065" in changed
    assert "is finished at step 9" in said("train", run)
