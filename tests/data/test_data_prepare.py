"""Preparing rows from files: however it is stopped or disturbed, the folder ends the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.cli import parser
from hyla_lm.data.preparation import Preparation, prepare
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.data.verify import verify
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.input.manifest import MANIFEST, read_manifest
from hyla_lm.input.packing import Block
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from tests import preloaded
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.data.conftest import documents_in, prose

Contents = dict[str, bytes]
ROOT = Path(__file__).parents[2]
SHARDS = [f"train-{index:05d}-of-00003.arrayrecord" for index in range(3)]
# Every third document is long, which makes the second of three shards the largest.
PROSE = [prose(seed, 50 if seed % 3 == 1 else 2) for seed in range(24)]
TEXTS = [*PROSE, "", "é🙂\n日本 naïve\ttext ", "a", "\n", " ", "🙂"]
PREPARE = ("-m", "hyla_lm", "data", "prepare")
# The same, where no file can have more bytes than the first argument says.
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
runpy.run_module("hyla_lm", run_name="__main__", alter_sys=True)
"""
KILLED = """
import os, pkgutil, signal, sys
from unittest.mock import patch
from hyla_lm.cli.main import main
after, count, *arguments = sys.argv[1:]
real, calls = pkgutil.resolve_name(after), []
def dying(*given, **named):
    calls.append(real(*given, **named))
    return calls[-1] if len(calls) < int(count) else os.kill(os.getpid(), signal.SIGKILL)
with patch(after, dying):
    main(["data", "prepare", *arguments])
"""


@dataclass(frozen=True)
class Request:
    """What is asked of the command line."""

    files: list[Path]
    tokenizer: Tokenizer
    folder: Path

    def flags(self, *more: str) -> list[str]:
        paths = ["--input", *map(str, self.files), "--output", str(self.folder), "--workers=1"]
        rows = ["--tokenizer", self.tokenizer.path, "--sequence_length=16", "--shards=3"]
        return [*paths, *rows, *more]

    def run(self, *more: str) -> Contents:
        options = parser().parse_args(["prepare", *self.flags(*more)])
        options.run(options, [])
        return contents(self.folder)

    def start(self, *more: str, program: Sequence[str] = PREPARE) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, *program, *self.flags(*more)], subprocess.PIPE
        return preloaded.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


def contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def places(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of every file: any write changes one of them."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.iterdir()}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_json_gz(TEXTS, tmp_path_factory.mktemp("c4"), "train", 3)


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, files: list[Path], tokenizer: Tokenizer
) -> Contents:
    """What every run of the same request must end with."""
    return Request(files, tokenizer, tmp_path_factory.mktemp("whole")).run()


@pytest.fixture
def asked(tmp_path: Path, files: list[Path], tokenizer: Tokenizer) -> Request:
    return Request(files, tokenizer, tmp_path / "rows")


@pytest.mark.parametrize(("write", "shards"), [(write_json_gz, 2), (write_array_records, 3)])
def test_shards_hold_every_document_of_their_files_once(
    asked: Request, tmp_path: Path, write: Callable[..., list[Path]], shards: int
) -> None:
    """Document i is in file i mod 3."""
    asked = replace(asked, files=write(TEXTS, tmp_path, "train", 3))
    tokenizer = asked.tokenizer
    ids = [[tokenizer.bos, *tokenizer.encode(text), tokenizer.eos] for text in TEXTS]
    held = [ids[index::3] for index in range(3)]
    borders = [3 * index // shards for index in range(shards + 1)]
    asked.run(f"--shards={shards}")
    assert documents_of(asked) == [list(chain(*held[a:b])) for a, b in pairwise(borders)]
    manifest = verify(str(asked.folder))
    assert manifest.documents == len(TEXTS)
    assert manifest.text_bytes == len("".join(TEXTS).encode())


def documents_of(asked: Request) -> list[list[list[int]]]:
    """The documents of each shard."""
    manifest = read_manifest(asked.folder)
    rows = RowReader(asked.folder, manifest).read(range(manifest.rows))["tokens"]
    ends = np.cumsum([shard.rows for shard in manifest.shards])
    return [documents_in(held, asked.tokenizer.bos) for held in np.split(rows, ends[:-1])]


def test_workers_give_the_same_bytes(asked: Request, whole: Contents) -> None:
    assert asked.start("--workers=2").wait() == 0
    assert contents(asked.folder) == whole
    assert set(whole) == {".request.json", MANIFEST, *SHARDS}


@pytest.mark.parametrize(
    ("after", "count", "finished"),
    [
        ("hyla_lm.data.row_writer._check_written", 2, 1),  # a shard before its rename
        ("hyla_lm.data.preparation.write_whole", 4, 2),  # all reports; the last shard is cut short
        ("hyla_lm.data.preparation.write_manifest", 1, 3),  # before the reports are removed
    ],
)
def test_a_killed_run_goes_on(
    asked: Request, whole: Contents, after: str, count: int, finished: int
) -> None:
    command = [sys.executable, "-c", KILLED, after, str(count), *asked.flags()]
    assert preloaded.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    before = places(asked.folder)
    for name in before.keys() & set(SHARDS[finished:]):
        os.truncate(asked.folder / name, 100)
    assert asked.run() == whole
    kept = places(asked.folder).items() & before.items()
    assert {name for name, _ in kept} >= set(SHARDS[:finished])


class Killing:
    """Documents whose worker is killed."""

    name = "documents"

    def content(self) -> list[str]:
        return []

    def blocks(self, *shard: object) -> Iterator[Block]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield from ()


def test_a_killed_worker_is_reported(tmp_path: Path, tokenizer: Tokenizer) -> None:
    asked = Preparation(Killing(), tokenizer, str(tmp_path / "rows"), "train", 16, 2)
    with pytest.raises(Unavailable, match="a worker process died.*run the same command again"):
        prepare(asked, workers=2)
    assert not asked.is_whole()


def test_a_file_that_cannot_grow_is_reported_and_the_run_goes_on(
    asked: Request, whole: Contents
) -> None:
    process = asked.start(program=("-c", LIMITED, "140000", "data", "prepare"))
    error = process.communicate()[1]
    assert process.returncode == 2 and "Traceback" not in error
    assert "cannot be written" in error and "File too large" in error
    left = contents(asked.folder)  # no manifest, and under the names of shards only whole ones
    named = {name: left[name] for name in SHARDS if name in left}
    assert len(named) == 1 and named.items() <= whole.items() and MANIFEST not in left
    assert asked.run() == whole


def test_another_request_for_a_folder_is_refused(
    asked: Request, texts: list[str], tmp_path: Path
) -> None:
    asked.run()
    before, (first, second, third) = places(asked.folder), asked.files
    changed, model = tmp_path / second.name, tmp_path / "other.model"
    changed.write_bytes(second.read_bytes() * 2)
    train_tokenizer(texts[:50], 512, model)
    for what, other, more in [
        ("tokenizer", replace(asked, tokenizer=Tokenizer(str(model))), []),
        ("sequence_length", asked, ["--sequence_length=17"]),
        ("shards", asked, ["--shards=1"]),
        ("split", asked, ["--split=validation"]),
        ("documents", replace(asked, files=[first, third, second]), []),
        ("documents", replace(asked, files=[first, changed, third]), []),
    ]:
        with pytest.raises(UserError, match=f"was begun with another {what}: ask for the same"):
            other.run(*more)
        assert places(asked.folder) == before


def test_two_runs_at_once_leave_a_whole_folder(asked: Request, whole: Contents) -> None:
    both = [asked.start("--workers=2"), asked.start("--workers=1")]
    assert [process.wait() for process in both] == [0, 0], [p.communicate() for p in both]
    assert contents(asked.folder) == whole
