"""Processes that read for a command end with it, also when it is killed."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parents[2]
WAIT_SECONDS, END_SECONDS = 120, 30
COLLECTING = ["-c", "from hyla_lm.data.sample_corpus import *; collect(installed_roots())"]


def workers_of(pid: int) -> list[int]:
    """The worker processes that a process has started."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for path in listed for child in content_of(path).split()]
    commands = {int(child): content_of(Path(f"/proc/{int(child)}/cmdline")) for child in children}
    return [child for child, command in commands.items() if b"spawn_main" in command]


def content_of(path: Path) -> bytes:
    """Of a file of a process or thread; empty once that is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def wait_until(condition: Callable[[], object], seconds: float) -> None:
    stop = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < stop
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that nobody has waited for is as good as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks into /proc")
def test_workers_end_with_a_killed_command(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w") as output:
        command = [sys.executable, *COLLECTING]
        process = preloaded.Popen(command, cwd=ROOT, stdout=output, stderr=output)
    count = max(1, os.cpu_count() or 1)
    try:
        wait_until(lambda: len(workers_of(process.pid)) >= count, WAIT_SECONDS)
        workers = workers_of(process.pid)
    finally:
        process.kill()
        process.wait()
    assert len(workers) >= count, (tmp_path / "output").read_text()
    wait_until(lambda: not any(map(is_running, workers)), END_SECONDS)
