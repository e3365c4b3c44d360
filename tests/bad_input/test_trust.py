"""A run's own config.gin may be anybody's: it imports modules of this project alone."""

import sys
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from tests.bad_input.conftest import Reject


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when somebody imports the module `stranger`."""
    (tmp_path / "modules").mkdir()
    path = tmp_path / "imported"
    (tmp_path / "modules" / "stranger.py").write_text(f"open({str(path)!r}, 'w')\nvalue = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    return path


def workdir_of(folder: Path, *lines: str) -> Path:
    """A workdir whose config.gin holds the lines."""
    folder.mkdir(exist_ok=True)
    (folder / "config.gin").write_text("".join(f"{line}\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("import stranger", "imports stranger,"),
        ("import stranger as hyla_lm", "imports stranger,"),
        ("import os", "imports os,"),
        ("import hyla_lm_stranger", "imports hyla_lm_stranger,"),
        ("import hyla_lm.__main__", "imports hyla_lm.__main__,"),
        ("from __gin__ import dynamic_registration", "imports __gin__.dynamic_registration,"),
    ],
)
def test_a_config_that_could_run_code_is_refused(
    reject: Reject, tmp_path: Path, mark: Path, line: str, named: str
) -> None:
    workdir = workdir_of(tmp_path / "run", "import hyla_lm.evals.suites", line, "import stranger")
    told = reject("evaluate", f"--workdir={workdir}")
    assert f"{workdir}/config.gin {named}" in told and "trust_imports" in told
    assert not mark.exists()


def test_a_config_with_an_include_is_refused(reject: Reject, tmp_path: Path) -> None:
    workdir = workdir_of(tmp_path / "run", "include 'stranger.gin'")
    told = reject("evaluate", f"--workdir={workdir}", "--trust_imports")
    assert f"{workdir}/config.gin includes 'stranger.gin'" in told


def test_a_trusted_config_imports_what_it_names(
    reject: Reject, tmp_path: Path, tiny_gin: Path, mark: Path
) -> None:
    workdir = workdir_of(tmp_path / "run", "import stranger", tiny_gin.read_text())
    assert "no checkpoint" in reject("evaluate", f"--workdir={workdir}", "--trust_imports")
    assert mark.exists()


def test_a_gin_file_that_is_given_is_trusted(
    reject: Reject, tmp_path: Path, tiny_gin: Path, mark: Path
) -> None:
    workdir = workdir_of(tmp_path / "run")
    given = tmp_path / "mine.gin"
    given.write_text(f"import stranger\ninclude '{tiny_gin}'\n")
    assert "no checkpoint" in reject("evaluate", f"--workdir={workdir}", f"--gin_file={given}")
    assert mark.exists()


def test_training_does_not_read_the_config_of_its_workdir(
    tmp_path: Path, tiny_gin: Path, mark: Path
) -> None:
    workdir = workdir_of(tmp_path / "run", "import stranger")
    assert main(["train", f"--gin_file={tiny_gin}", f"--workdir={workdir}"]) == 0
    assert not mark.exists() and "stranger" not in (workdir / "config.gin").read_text()


@pytest.mark.parametrize("value", ["('stranger',)", "%NAMES", "@Rows()"])
def test_settings_that_name_modules_are_refused_too(
    reject: Reject, tmp_path: Path, tiny_gin: Path, value: str
) -> None:
    module, names = "import hyla_lm.data.seqio_settings", "NAMES = ('stranger',)"
    lines = [tiny_gin.read_text(), module, names, f"a/SeqioTasks.modules = {value}"]
    workdir = workdir_of(tmp_path / "run", *lines)
    told = reject("evaluate", f"--workdir={workdir}")
    assert f"{workdir}/config.gin sets SeqioTasks.modules, which imports" in told
