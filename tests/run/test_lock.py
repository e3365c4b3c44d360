"""One run a folder: a second one is refused, and a holder that died stands in nobody's way."""

import errno
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.lock import LOCK, holder
from tests import preloaded
from tests.conftest import SEQUENCE_LENGTH, TINY
from tests.run.test_resume import final_arrays
from tests.run_lines import measured

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
    """A trainer in a process of its own, which has come to step 8 and waits."""

    def __init__(self, gin_file: Path, workdir: Path, *bindings: str):
        home = workdir.parent
        self.go, self.said = home / "go", home / "said"
        own = [f"--gin.{binding}" for binding in bindings]
        with self.said.open("w") as said:
            self.process = preloaded.Popen(
                [sys.executable, "-c", WAITER, str(self.go), *arguments(gin_file, workdir), *own],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        while not self.go.with_suffix(".waits").exists():
            assert self.process.poll() is None, self.said.read_text()
            time.sleep(0.02)

    def goes_on_to_its_end(self) -> None:
        self.go.touch()
        assert self.process.wait(timeout=300) == 0, self.said.read_text()

    def clean_up(self) -> None:
        """Ends it and the processes that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def arguments(gin_file: Path, workdir: Path) -> list[str]:
    return ["train", f"--gin_file={gin_file}", f"--workdir={workdir}"]


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lock") / "small.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    return path


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    """The folder of a run that was never disturbed."""
    workdir = gin_file.with_name("whole")
    assert main(arguments(gin_file, workdir)) == 0
    return workdir


def assert_equal(workdir: Path, whole: Path) -> None:
    assert measured(workdir) == measured(whole)
    assert (workdir / "config.gin").read_text() == (whole / "config.gin").read_text()
    assert names(workdir) == names(whole)
    for found, expected in zip(final_arrays(workdir), final_arrays(whole), strict=True):
        assert found.tobytes() == expected.tobytes()


def names(workdir: Path) -> set[str]:
    """The files of a run; those of events are named by the second, one for each process."""
    return {re.sub(r"(?<=tfevents\.)[1-9]\d*", "N", name) for name in os.listdir(workdir)}


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
        assert main(arguments(gin_file, workdir)) == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert re.fullmatch(
            rf"hyla-lm: --workdir={workdir} is being trained by process {first.process.pid} on "
            r"\S+ since \d{4}-\d\d-\d\d \d\d:\d\d UTC: wait for it, end it, or give another "
            r"folder\.\n",
            told.err,
        )
    assert written(workdir) == before
    first.goes_on_to_its_end()
    assert_equal(workdir, whole)


def test_a_run_that_was_killed_can_be_started_again_at_once(
    gin_file: Path, whole: Path, tmp_path: Path
) -> None:
    """Its reading processes, which live on for a moment, hold nothing."""
    workdir = tmp_path / "run"
    killed = Waiting(gin_file, workdir, "LanguageModel.read_workers = 1")
    killed.process.kill()
    killed.process.wait()
    assert main(arguments(gin_file, workdir)) == 0
    killed.clean_up()
    assert_equal(workdir, whole)


def test_a_run_that_ends_with_an_error_leaves_no_lock(gin_file: Path, tmp_path: Path) -> None:
    workdir = tmp_path / "run"
    wrong = "--gin.LanguageModel.sequence_length = 99"
    for _ in range(2):
        assert main([*arguments(gin_file, workdir), wrong]) == 2
        with closing(RunFolder(str(workdir))):
            pass


def test_a_folder_can_be_opened_again_once_it_is_closed(tmp_path: Path) -> None:
    for _ in range(3):
        folder = RunFolder(str(tmp_path / "run"))
        with pytest.raises(UserError, match=f"trained by process {os.getpid()} on"):
            RunFolder(str(tmp_path / "run"))
        folder.close()


def test_only_process_0_takes_the_lock(tmp_path: Path) -> None:
    with closing(RunFolder(str(tmp_path))), closing(RunFolder(str(tmp_path), writes=False)):
        pass


def test_a_child_of_the_trainer_does_not_keep_the_lock(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1, close_fds=False)
    folder.close()
    RunFolder(str(tmp_path)).close()
    child.communicate(b"\n")


DAMAGED = [b"", b"\xff\xfe", b"{", b"[]", b"7", b'{"pid": 7}', b'{"started": 3}']
DAMAGED += [b'{"pid": 7, "host": "a", "started": "yesterday"}', b"x" * 10**6]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: repr(content[:20]))
def test_a_damaged_lock_file_is_no_lock_and_names_nobody(content: bytes, tmp_path: Path) -> None:
    (tmp_path / LOCK).write_bytes(content)
    with closing(RunFolder(str(tmp_path))):
        assert json.loads((tmp_path / LOCK).read_text())["pid"] == os.getpid()
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(UserError, match="is being trained by another process: wait for it"):
            RunFolder(str(tmp_path))


def test_the_holder_is_named_in_universal_time() -> None:
    content = b'{"pid": 4242, "host": "host-a", "started": "2026-01-01T14:00:00+02:00"}'
    assert holder(content) == "process 4242 on host-a since 2026-01-01 12:00 UTC"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_disk_without_locks_is_named(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(UserError, match="is on a disk without file locks .*: mount it with locks"):
        RunFolder(str(tmp_path))


def test_a_folder_that_holds_only_a_lock_is_an_empty_folder(tmp_path: Path) -> None:
    for _ in range(2):
        RunFolder(str(tmp_path)).close()
    assert os.listdir(tmp_path) == [LOCK]
