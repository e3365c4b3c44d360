"""Deliberate faults, each of which a test must find: python -m tests.mutations [--only REGEX].

Each row of mutations.toml names a promise, the lines of a file that keep it, a fault to put in
their place and the test that must then fail. A fault is made in a copy of the tree, alone.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).with_suffix(".toml")
# Folders of the tree that are packages below hyla_lm.
MAPPED = ("data", "evals", "gin", "tpu")
# As make test compiles most tests: QUICKLY in the Makefile.
QUICKLY = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
}
IS_INSIDE = """
import os, hyla_lm, hyla_lm.data, hyla_lm.evals, hyla_lm.tpu
for module in (hyla_lm, hyla_lm.data, hyla_lm.evals, hyla_lm.tpu):
    assert os.path.realpath(module.__file__).startswith(os.getcwd() + os.sep), module.__file__
"""
PASSED, FAILED = 0, 1
SECONDS = 600
CAUGHT, MISSED, BROKEN = "caught", "MISSED", "BROKEN"


class Row(NamedTuple):
    """A fault: `new` in place of `old`, which is in `file` once, makes `test` of pytest fail."""

    promise: str
    file: str
    old: str
    new: str
    test: str


def rows() -> list[Row]:
    """The rows of mutations.toml."""
    return [Row(**row) for row in tomllib.loads(TABLE.read_text())["row"]]


class Copy:
    """A copy of the tree, which imports nothing of the tree itself."""

    def __init__(self, home: Path, programs: Path):
        self._root = home.resolve()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if os.path.lexists(ROOT / name):
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, home / name, follow_symlinks=False)
        for folder in MAPPED:
            if not (home / "hyla_lm" / folder).exists():
                (home / "hyla_lm" / folder).symlink_to(Path("..", folder))
        own = {"PYTHONPATH": str(self._root), "TEST_PROGRAMS": str(programs)}
        self._environment = {**os.environ, **QUICKLY, **own}
        self._run("-c", IS_INSIDE).check_returncode()

    def status_of(self, test: str) -> int | str:
        """The status of pytest for a test, or the seconds that it may take."""
        command = ["-m", "pytest", "-xq", "-pno:cacheprovider", *shlex.split(test)]
        try:
            return self._run(*command).returncode
        except subprocess.TimeoutExpired:
            return f"{SECONDS} s"

    def status_under(self, row: Row) -> int | str:
        """The status of the row's test under its fault, which is taken back."""
        path = self._root / row.file
        sound = path.read_text()
        try:
            self._write(path, sound.replace(row.old, row.new))
            return self.status_of(row.test)
        finally:
            self._write(path, sound)

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        Path(cache_from_source(path)).unlink(missing_ok=True)

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self._root,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            timeout=SECONDS,
        )


def try_all(test: str, of_test: Sequence[Row], copies: SimpleQueue[Copy]) -> list[str]:
    """The verdicts on rows of one test, which are printed."""
    copy, verdicts = copies.get(), []
    try:
        sound = copy.status_of(test)
        for row in of_test:
            begun = time.monotonic()
            status = copy.status_under(row) if sound == PASSED else f"{sound} without the fault"
            verdicts.append({PASSED: MISSED, FAILED: CAUGHT}.get(status, BROKEN))
            seconds = time.monotonic() - begun
            why = f" ({test}: status {status})" if verdicts[-1] != CAUGHT else ""
            print(f"{verdicts[-1]} {seconds:6.1f} s  {row.file}: {row.promise}{why}", flush=True)
    finally:
        copies.put(copy)
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--only", default="", help="a pattern in the file, promise or test")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    begun, counts, by_test = time.monotonic(), Counter[str](), dict[str, list[Row]]()
    for row in rows():
        if re.search(options.only, f"{row.file} {row.promise} {row.test}"):
            by_test.setdefault(row.test, []).append(row)
    copies = SimpleQueue[Copy]()
    with TemporaryDirectory(prefix="mutations-") as home, ThreadPoolExecutor(options.jobs) as pool:
        for number in range(options.jobs):
            copies.put(Copy(Path(home, str(number)), Path(home, "programs")))
        tried = [pool.submit(try_all, test, found, copies) for test, found in by_test.items()]
        for future in as_completed(tried):
            counts.update(future.result())
    told = ", ".join(f"{counts[verdict]} {verdict}" for verdict in (CAUGHT, MISSED, BROKEN))
    print(f"{counts.total()} faults: {told}, in {time.monotonic() - begun:.0f} s")
    return int(counts[CAUGHT] != counts.total())


if __name__ == "__main__":
    sys.exit(main())
