"""The worker that keeps the trainer running on a host, with real processes."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.tpu import worker
from tests.tpu.conftest import write_program

HANGS = "trap 'exit 75' TERM; sleep 60 & wait"


class Host:
    """A folder of a job, and short ways to do things in it."""

    def __init__(self, folder: Path):
        self.folder = folder / "job"
        self.workdir = folder / "run"

    def start(self, script: str) -> dict[str, Any]:
        return worker.start(self.folder, str(self.workdir), ["sh", "-c", script])

    def status(self) -> dict[str, Any]:
        return worker.status(self.folder)

    def wait(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        while not is_so(found := self.status()):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        return found

    def trainer(self) -> int:
        return self.wait(lambda found: "pid" in found)["pid"]

    def ended(self) -> dict[str, Any]:
        return self.wait(lambda found: found["state"] != "running")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    worker.stop(host.folder, 0)


def watcher_of(trainer: int) -> int:
    return int(Path(f"/proc/{trainer}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_is_written_down(host: Host) -> None:
    (host.workdir / "checkpoints" / "9").mkdir(parents=True)
    host.start(f"echo said; mkdir {host.workdir}/checkpoints/10; exit 3")
    assert host.ended() == {"state": "exited", "code": 3, "step": 10, "failures": 1}
    assert "said\n" in (host.folder / "log").read_text()
    for failures in (2, 3):
        host.start("exit 3")
        host.wait(lambda found, count=failures: found["failures"] == count)
        host.ended()
    host.start("exit 75")
    assert host.ended()["failures"] == 3
    host.start(f"mkdir {host.workdir}/checkpoints/11; exit 75")
    assert host.wait(lambda found: found["failures"] == 0)["code"] == 75


def test_a_machine_that_shuts_down_lets_the_trainer_save(host: Host) -> None:
    host.start(HANGS)
    trainer = host.trainer()
    for process in (watcher_of(trainer), trainer):
        time.sleep(0.1)
        os.kill(process, signal.SIGTERM)
    assert host.ended()["code"] == 75


def test_a_trainer_that_died_unseen_counts_as_a_failure(host: Host) -> None:
    host.start(HANGS)
    trainer = host.trainer()
    os.kill(watcher_of(trainer), signal.SIGKILL)
    assert host.status()["state"] == "running" and not host.start(HANGS)["started"]
    os.killpg(trainer, signal.SIGKILL)
    assert host.ended()["state"] == "died"
    assert host.start("exit 0")["failures"] == 1


def test_processes_of_the_trainer_end_with_it(host: Host) -> None:
    host.start("sleep 60 & exit 0")
    host.ended()
    deadline = time.monotonic() + 10
    while not host.start("exit 0")["started"]:
        assert time.monotonic() < deadline


def test_stop(host: Host) -> None:
    host.start(HANGS)
    host.trainer()
    time.sleep(0.1)
    assert not host.start("exit 0")["started"]
    assert worker.stop(host.folder, 10)["code"] == 75
    assert worker.stop(host.folder, 10)["code"] == 75


def test_stop_of_a_trainer_that_does_not_listen(host: Host) -> None:
    host.start("trap '' TERM; sleep 60 & wait; wait")
    host.trainer()
    time.sleep(0.1)
    assert worker.stop(host.folder, 0.2)["code"] == 128 + signal.SIGKILL


def test_nothing_was_ever_started(host: Host) -> None:
    assert host.status() == worker.stop(host.folder, 0) == {}
    assert not host.folder.exists()


def test_the_newest_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker.newest_checkpoint(str(tmp_path)) is None
    for name in ("5", "40", "100.orbax-checkpoint-tmp", "notes"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    assert worker.newest_checkpoint(f"{tmp_path}/") == 40
    place, last = "gs://b/r/checkpoints", "commit_success.txt"
    listing = f"printf '{place}/5/{last}\\n{place}/70/{last}\\n'"
    write_program(tmp_path / "bin" / "gcloud", f'[ "$3" = "{place}/*/{last}" ] && {listing}')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert worker.newest_checkpoint("gs://b/r") == 70
    assert worker.newest_checkpoint("gs://b/other") is None


def test_the_log_is_in_the_bucket_when_the_trainer_has_ended(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "copied"
    copy = f'[ "$2" = cp ] && echo "$5" > {copied}.name && cp "$4" {copied}'
    write_program(tmp_path / "bin" / "gcloud", copy)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    worker.start(host.folder, "gs://b/run", ["sh", "-c", "echo said; exit 3"])
    deadline = time.monotonic() + 20
    while not copied.exists() or "ended with status 3" not in copied.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "said\n" in copied.read_text()
    name = Path(f"{copied}.name").read_text()
    assert name.startswith(f"gs://b/run/host_logs/{socket.gethostname()}/")
