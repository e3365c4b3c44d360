"""The command as a process: it ends quietly from its first moment."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hyla_lm
from hyla_lm import package

ROOT = Path(hyla_lm.__file__).parents[1]
SLOW_IMPORT = """
import pathlib, time
pathlib.Path({marker!r}).touch()
time.sleep(60)
"""


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(tmp_path: Path) -> None:
    marker = tmp_path / "importing"
    (tmp_path / "difflib.py").write_text(SLOW_IMPORT.format(marker=str(marker)))
    process = subprocess.Popen(
        [sys.executable, "-m", "hyla_lm", "train", "--workdir=run"],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 60
    while not marker.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=30)[1]
    assert (process.returncode, errors) == (-signal.SIGINT, b""), "which a shell calls status 130"


def test_a_package_in_the_clone_of_something_else_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    person = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    commit = ["commit", "-q", "--allow-empty", "-m", "something else"]
    subprocess.run(["git", "-C", str(tmp_path), *person, *commit], check=True)
    (tmp_path / "__init__.py").touch()
    monkeypatch.setattr(package, "PACKAGE", tmp_path)
    assert package.git_revision.__wrapped__() is None


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_as_an_empty_one(closed: str) -> None:
    command = f"{sys.executable} -m hyla_lm describe TrainConfig {closed}"
    assert subprocess.run(["bash", "-c", command], cwd=ROOT).returncode == 0


def test_a_reader_who_goes_ends_it_without_a_word() -> None:
    command = f"{sys.executable} -m hyla_lm describe TrainConfig; echo $? >&2"
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr == "141\n"
