"""One run a folder: a second one is refused, and a holder that died stands in nobody's way."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.lock import LOCK
from tests.tiny_runs import train, write_gin


def test_a_second_run_is_refused_and_does_not_disturb_the_first(
    tiny_rows: Rows, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gin_file, workdir = write_gin(tmp_path, tiny_rows), tmp_path / "run"
    with closing(RunFolder(str(workdir))) as first:
        first.append_line(8, {"x": 1.0})
        for _ in range(2):
            assert train(gin_file, workdir) == 2
            out, err = capsys.readouterr()
            named = rf"--workdir={workdir} is being trained by process {os.getpid()} on \S+ since "
            assert out == "" and re.fullmatch(rf"hyla-lm: {named}.*\n", err)
        assert sorted(os.listdir(workdir)) == [LOCK, "metrics.jsonl"]
        assert list(first.lines()) == [{"step": 8, "x": 1.0}]


def test_a_child_of_the_trainer_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, close_fds=False)
    folder.close()
    RunFolder(str(tmp_path)).close()
    child.communicate(b"\n")


def test_a_lock_that_is_a_link_is_refused_and_its_target_left_unchanged(tmp_path: Path) -> None:
    target, workdir = tmp_path / "precious", tmp_path / "run"
    target.write_text("precious")
    workdir.mkdir()
    (workdir / LOCK).symlink_to(target)
    with pytest.raises(UserError, match="is a symbolic link"):
        RunFolder(str(workdir))
    assert target.read_text() == "precious"


def test_a_folder_that_is_removed_while_it_is_written_ends_the_run(tmp_path: Path) -> None:
    with closing(RunFolder(str(tmp_path / "run"))) as folder:
        folder.check()
        shutil.rmtree(tmp_path / "run")
        with pytest.raises(UserError, match="was removed while the run wrote to it"):
            folder.check()


@pytest.mark.parametrize("content", [b"", b'{"pid": 7}', b"x" * 10**6], ids=[0, 1, 2])
def test_a_damaged_lock_file_is_no_lock_and_names_nobody(content: bytes, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with closing(RunFolder(str(tmp_path))):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(UserError, match="is being trained by another process: wait for it"):
            RunFolder(str(tmp_path))
