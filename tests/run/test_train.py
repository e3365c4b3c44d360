"""What a run leaves behind, and what the same command then does."""

import json
from pathlib import Path

import jax
import pytest

from hyla_lm import train as trainer
from hyla_lm.cli.main import main
from tests.run_lines import measured
from tests.tiny_runs import saved_steps, train

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.fixture
def run(tiny_gin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, str]:
    workdir = tmp_path / "run"
    assert train(tiny_gin, workdir) == 0
    return workdir, capsys.readouterr().out


def test_the_folder_of_a_run(run: tuple[Path, str], tiny_gin: Path) -> None:
    workdir, out = run
    names = {path.name for path in workdir.iterdir()}
    visible = {name for name in names if not name.startswith((".", "events."))}
    files = {"config.gin", "metrics.jsonl", "summary.json", "tokenizer.model"}
    assert visible == files | {"checkpoints", "documents"}
    lines = measured(workdir)
    assert [line["step"] for line in lines if "train/loss_nats" in line] == [3, 6, 9, 12]
    assert [line["step"] for line in lines if "validation/loss_nats" in line] == [4, 8, 12]
    summary = json.loads((workdir / "summary.json").read_text())
    assert summary["step"] == 12
    assert summary["tokens_seen"] == 12 * 8 * 16
    assert summary["attention"] == ["hyla"]
    assert (summary["device"], summary["jax"]) == ("cpu", jax.__version__)
    assert 0 < summary["validation"]["bits_per_byte"] < 20
    assert summary["train"]["loss_nats"] == lines[-2]["train/loss_nats"]
    told = ("MB on each device", "hyla (blocked)", "tokens per step", "tensorboard --logdir")
    assert all(part in out for part in told)


def test_a_run_ends_with_a_sample_if_it_has_a_prompt(
    run: tuple[Path, str], tiny_gin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "closing_prompt = None" in tiny_gin.read_text() and "sample:" not in run[1]
    assert train(tiny_gin, tmp_path / "other", "LanguageModel.closing_prompt=ba") == 0
    assert "\nsample:\n  ba" in capsys.readouterr().out


def test_only_the_newest_checkpoints_stay(tiny_gin: Path, tmp_path: Path) -> None:
    often = ("CheckpointConfig.every=2", "CheckpointConfig.keep=2")
    assert train(tiny_gin, tmp_path / "run", *often) == 0
    assert saved_steps(tmp_path / "run") == [10, 12]


def test_longer_training_resumes_from_the_end(
    run: tuple[Path, str], tiny_gin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tiny_gin, run[0], "TrainConfig.steps=15") == 0
    assert "from the checkpoint of step 12" in capsys.readouterr().out
    assert [line["step"] for line in measured(run[0], "train/")] == [3, 6, 9, 12, 15]


def test_a_finished_run_says_so_and_does_nothing(
    run: tuple[Path, str],
    tiny_gin: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once its summary is there, which is written last; before, it still does what is due."""
    workdir = run[0]
    files = [workdir / name for name in ("summary.json", "metrics.jsonl", "config.gin")]
    content = [file.read_bytes() for file in files]
    before = json.loads(content[0])
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "make_program", None)
        assert train(tiny_gin, workdir) == 0
    assert [file.read_bytes() for file in files] == content
    [finished] = capsys.readouterr().out.splitlines()
    assert finished.startswith(f"{workdir} is finished at step 12; validation ")
    assert f"loss_nats {before['validation']['loss_nats']:.4f}" in finished
    (workdir / "summary.json").unlink()
    assert train(tiny_gin, workdir) == 0
    after = json.loads((workdir / "summary.json").read_text())
    assert after["validation"] == before["validation"]
    assert "from the checkpoint of step 12" in capsys.readouterr().out


def test_evaluate_repeats_the_summary(
    run: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", f"--workdir={run[0]}"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    summary = json.loads((run[0] / "summary.json").read_text())
    assert evaluated == {"step": 12, **summary["validation"]}
