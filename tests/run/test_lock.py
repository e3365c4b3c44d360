"""One run a folder: a second one is refused, and a holder that died stands in nobody's way."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.lock import LOCK
from tests import preloaded
from tests.faults.runs import differences
from tests.tiny_runs import arguments, train, write_gin

STEPS = 12
# Trains, but waits in step 8 until a file is there.
WAITER = """
import sys, time
from pathlib import Path
from hyla_lm.cli.main import main
from hyla_lm.logs import step_log

go, record = Path(sys.argv[1]), step_log.StepLog.record

def recorded(log, step, *rest):
    record(log, step, *rest)
    if step == 8:
        go.with_suffix(".waits").touch()
        while not go.exists():
            time.sleep(0.02)

step_log.StepLog.record = recorded
sys.exit(main(sys.argv[2:]))
"""


class Waiting:
    """A trainer in another process, which has come to step 8 and waits."""

    def __init__(self, gin_file: Path, workdir: Path, *bindings: str):
        home = workdir.parent
        self._go, self._output = home / "go", home / "output"
        command = [sys.executable, "-c", WAITER, str(self._go)]
        command += arguments(gin_file, workdir, *bindings)
        with self._output.open("w") as output:
            self.process = preloaded.Popen(command, stdout=output, stderr=output)
        while not self._go.with_suffix(".waits").exists():
            assert self.process.poll() is None, self._output.read_text()
            time.sleep(0.02)

    def resume_to_its_end(self) -> None:
        self._go.touch()
        assert self.process.wait(timeout=300) == 0, self._output.read_text()


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("lock"), tiny_rows)


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    """The folder of a run that was never disturbed."""
    assert train(gin_file, gin_file.with_name("whole")) == 0
    return gin_file.with_name("whole")


def written(workdir: Path) -> dict[str, int]:
    """When each file was written; the first run's save of step 5 may be under way."""
    files = (path for path in workdir.rglob("*") if "checkpoints" not in path.parts)
    return {str(path): path.stat().st_mtime_ns for path in files}


def test_a_second_run_is_refused_and_does_not_disturb_the_first(
    gin_file: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workdir = tmp_path / "run"
    first = Waiting(gin_file, workdir)
    before = written(workdir)
    capsys.readouterr()
    for _ in range(2):
        assert train(gin_file, workdir) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(
            rf"hyla-lm: --workdir={workdir} is being trained by process {first.process.pid} on "
            r"\S+ since \d{4}-\d\d-\d\d \d\d:\d\d UTC: wait for it, end it, or give another "
            r"folder\.\n",
            err,
        )
    assert written(workdir) == before
    first.resume_to_its_end()
    assert differences(workdir, whole, STEPS) == []


def test_a_folder_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    for _ in range(2):
        folder = RunFolder(str(tmp_path))
        RunFolder(str(tmp_path), writes=False).close()
        with pytest.raises(UserError, match=f"trained by process {os.getpid()} on"):
            RunFolder(str(tmp_path))
        folder.close()
        assert os.listdir(tmp_path) == [LOCK]


def test_a_child_of_the_trainer_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, close_fds=False)
    folder.close()
    RunFolder(str(tmp_path)).close()
    child.communicate(b"\n")


@pytest.mark.parametrize("content", [b"", b'{"pid": 7}', b"x" * 10**6], ids=[0, 1, 2])
def test_a_damaged_lock_file_is_no_lock_and_names_nobody(content: bytes, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with closing(RunFolder(str(tmp_path))):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(UserError, match="is being trained by another process: wait for it"):
            RunFolder(str(tmp_path))
