"""Folders without the run asked for, or with other files."""

import io
import json
import shutil
import sys
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.bad_input.conftest import Reject, bound_to

pytestmark = pytest.mark.usefixtures("programs_once")


@pytest.mark.parametrize("below", ["", "run"], ids=["a_file", "below_a_file"])
def test_a_workdir_that_cannot_be_is_named(
    reject: Reject, tiny_gin: Path, tmp_path: Path, below: str
) -> None:
    (tmp_path / "file").write_text("mine")
    workdir = tmp_path / "file" / below
    line = reject("train", f"--gin_file={tiny_gin}", f"--workdir={workdir}")
    assert f"--workdir={workdir}" in line


def test_a_workdir_of_something_else_is_left_alone(
    reject: Reject, tiny_gin: Path, tmp_path: Path
) -> None:
    workdir = tmp_path / "mine"
    workdir.mkdir()
    (workdir / "notes.txt").write_text("mine")
    line = reject("train", f"--gin_file={tiny_gin}", f"--workdir={workdir}")
    assert f"--workdir={workdir}" in line and "notes.txt" in line
    assert [path.name for path in workdir.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("binding", "named"),
    [
        ("ModelConfig.mlp_dim = 16", ["ModelConfig.mlp_dim = 8", "16"]),
        ("ModelConfig.attention = 'softmax'", ["ModelConfig.attention = 'hyla'", "'softmax'"]),
        ("TrainConfig.seed = 1", ["TrainConfig.seed = 0", "1"]),
    ],
)
def test_another_run_does_not_go_on_in_the_workdir(
    reject: Reject, trained: Path, binding: str, named: list[str]
) -> None:
    before = (trained / "metrics.jsonl").read_text()
    more = ["--gin.TrainConfig.steps = 4", f"--gin.{binding}"]
    line = reject("train", f"--gin_file={trained}/config.gin", f"--workdir={trained}", *more)
    assert all(name in line for name in [*named, str(trained)]), line
    assert (trained / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("command", ["train", "evaluate", "sample"])
def test_a_run_does_not_go_on_with_other_rows(
    reject: Reject, trained: Path, damaged: Rows, command: str
) -> None:
    manifest = Path(damaged.train, "manifest.json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": "elsewhere"}))
    line = reject(
        command,
        f"--gin_file={trained}/config.gin",
        f"--workdir={trained}",
        *(f"--gin.{binding}" for binding in bound_to(damaged)),
        *(["--prompt=ba"] if command == "sample" else []),
    )
    assert "train rows" in line and str(trained) in line


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_workdir_without_a_run_is_named(
    reject: Reject, tmp_path: Path, command: list[str]
) -> None:
    assert f"--workdir={tmp_path}" in reject(*command, f"--workdir={tmp_path}")


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_run_without_a_checkpoint_is_named(
    reject: Reject, trained: Path, tmp_path: Path, command: list[str]
) -> None:
    shutil.copy(trained / "config.gin", tmp_path)
    line = reject(*command, f"--workdir={tmp_path}")
    assert str(tmp_path) in line and "no checkpoint" in line and "None" not in line


def test_a_run_of_another_version_is_named(reject: Reject, trained: Path, tmp_path: Path) -> None:
    own = (trained / "config.gin").read_bytes()
    for text in (b"import hyla_lm.evals.gone\n" + own, own + b"\xff"):
        (tmp_path / "config.gin").write_bytes(text)
        line = reject("evaluate", f"--workdir={tmp_path}")
        assert f"{tmp_path}/config.gin: " in line and "another version" in line
        assert line.endswith("so give --gin_file.\n")


@pytest.mark.parametrize("command", [["evaluate"], ["sample", "--prompt=ba"]], ids=" ".join)
def test_a_step_without_checkpoint_is_named(
    reject: Reject, trained: Path, command: list[str]
) -> None:
    line = reject(*command, f"--workdir={trained}", "--step=1")
    assert "step 1" in line and "it has 2" in line


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--prompt=ba", "--max_tokens=0"], "--max_tokens"),
        (["--prompt=ba", "--temperature=-1"], "--temperature"),
        (["--prompt=ba", "--temperature=nan"], "--temperature"),
        (["--prompt=ba", "--top_k=-1"], "--top_k"),
        (["--prompt=ba", "--top_p=0"], "--top_p"),
        (["--prompt=ba", "--top_p=1.1"], "--top_p"),
        (["--prompt=ba", "--seed=-1"], "--seed"),
        (["--prompt=ba", "--samples=0"], "--samples=0"),
        (["--prompt=b\udcff"], "--prompt is not UTF-8"),
        (["--prompt=-", "--prompt=-"], "--prompt=-"),
        (["--prompts_file=/missing"], "--prompts_file=/missing"),
        (["--prompts_file=/dev/null"], "--prompts_file=/dev/null is empty"),
        (["--interactive", "--prompt=ba"], "leave out --prompt"),
        (["--interactive", "--samples=2"], "leave out --samples"),
        (["--interactive", "--json"], "leave out --json"),
    ],
)
def test_flags_of_sample_that_do_not_fit_are_named(
    reject: Reject, trained: Path, flags: list[str], named: str
) -> None:
    assert named in reject("sample", f"--workdir={trained}", *flags)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--text=a", "--input=b"], "--text and --input"),
        (["--text="], "--text"),
        (["--text=b\udcff"], "--text is not UTF-8"),
        (["--input=/missing"], "--input=/missing"),
    ],
)
def test_flags_of_score_that_do_not_fit_are_named(
    reject: Reject, trained: Path, flags: list[str], named: str
) -> None:
    assert named in reject("score", f"--workdir={trained}", *flags)


@pytest.mark.parametrize("command", [["sample"], ["sample", "--interactive"], ["score"]])
def test_standard_input_that_is_not_utf_8_is_named(
    reject: Reject, trained: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ba\xff\n"), encoding="utf-8"))
    line = reject(*command, f"--workdir={trained}")
    assert "standard input is not UTF-8" in line


def test_a_workdir_in_another_kind_of_store_is_refused(reject: Reject, tiny_gin: Path) -> None:
    line = reject("train", f"--gin_file={tiny_gin}", "--workdir=s3://bucket/run")
    assert "s3://bucket/run" in line and "gs://" in line
