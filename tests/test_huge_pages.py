"""A command starts again with huge pages, once, as what it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyla_lm.cli import huge_pages

SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")
PROGRAM = """
import json, os, re, sys
print("started", flush=True)
from hyla_lm.cli.huge_pages import start_with_huge_pages
start_with_huge_pages()
touched = bytearray(64 << 20)
touched[::4096] = b"x" * len(touched[::4096])
rollup = open("/proc/self/smaps_rollup").read()
huge_kib = int(re.search(r"AnonHugePages: +([0-9]+)", rollup)[1])
print(json.dumps([sys.argv[1:], os.environ["GLIBC_TUNABLES"], os.getpid(), huge_kib]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked of Linux")


def run(**variables: str) -> tuple[int, list]:
    """How often the program started, and what it said last; its process stays the same."""
    kept = {name: value for name, value in os.environ.items() if name != huge_pages.VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "two words", "--and=3"],
        env={**kept, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    *starts, said = process.communicate(timeout=60)[0].splitlines()
    found = json.loads(said)
    assert found[2] == process.pid
    return len(starts), found


def test_it_starts_once_more_with_its_arguments() -> None:
    starts, (arguments, tunables, _, _) = run()
    assert (starts, arguments, tunables) == (2, ["two words", "--and=3"], huge_pages.HUGE_PAGES)


def test_what_the_user_has_set_stays() -> None:
    starts, (_, tunables, _, _) = run(GLIBC_TUNABLES="")
    assert (starts, tunables) == (1, "")


@pytest.mark.skipif(
    not SWITCH.is_file() or "[madvise]" not in SWITCH.read_text(),
    reason="this kernel does not lend huge pages to who asks",
)
def test_memory_is_then_in_huge_pages() -> None:
    assert run()[1][3] > 32 << 10 > run(GLIBC_TUNABLES="")[1][3]


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages.sys, "platform", "darwin")
    monkeypatch.delenv(huge_pages.VARIABLE, raising=False)
    huge_pages.start_with_huge_pages()
    assert huge_pages.VARIABLE not in os.environ
