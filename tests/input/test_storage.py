"""Files of paths and globs, and files that appear whole."""

import errno
import os
from pathlib import Path

import pytest

from hyla_lm import storage
from hyla_lm.data.sample_corpus import SampleCorpus
from hyla_lm.errors import UserError
from hyla_lm.export.folder import check_new_folder
from hyla_lm.storage import append, as_path, list_files, write_whole

FILES = ("a.txt", "b.txt", "[ab].txt", "a?.md", "ab.md", "[2] x/c.txt", "[2] x/deep/er/c.txt")
NAMES = {
    "[ab].txt": ["[ab].txt"],
    "[a-b].txt": ["a.txt", "b.txt"],
    "a?.md": ["a?.md"],
    "[2] x/*.txt": ["[2] x/c.txt"],
    "*/c.txt": ["[2] x/c.txt"],
    "[2] x/**/c.*": ["[2] x/c.txt", "[2] x/deep/er/c.txt"],
    "**/er/*": ["[2] x/deep/er/c.txt"],
}


@pytest.mark.parametrize(("name", "files"), NAMES.items(), ids=NAMES)
def test_names_are_names_and_other_paths_are_globs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: list[str]
) -> None:
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert list_files([f"{tmp_path}/{name}"], "--input") == tuple(f"{tmp_path}/{f}" for f in files)
    monkeypatch.chdir(tmp_path)
    assert list_files([name], "--input") == tuple(files)


def test_a_name_appears_when_its_bytes_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "summary.json", []

    def fsync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, b"{}")
    (aside, named_before), (folder, named_after) = synced
    assert aside.suffix == ".partial" and not named_before
    assert folder == tmp_path and named_after


def test_an_append_that_fails_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, failing = tmp_path / "metrics.jsonl", [errno.EIO, errno.ESTALE]
    monkeypatch.setattr(storage, "RETRY_SECONDS", (1e-3,))
    append(path, b"one\n")

    def fsync(descriptor: int) -> None:
        if failing:
            raise OSError(failing.pop(), "injected")

    monkeypatch.setattr(os, "fsync", fsync)
    append(path, b"two\n")
    assert failing == [] and path.read_bytes() == b"one\ntwo\n"


def test_a_home_folder_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may have a user without a name."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    for use in (as_path, check_new_folder, lambda path: SampleCorpus(path).prepare()):
        with pytest.raises(UserError, match="~/x.*set HOME"):
            use("~/x")
