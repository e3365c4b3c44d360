"""The sample corpus as a data source: reproducible, built once, and never half there."""

import hashlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.data.sample_corpus import SampleCorpus
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import read_manifest
from tests import preloaded

CHECKOUT = Path(__file__).parents[2]
# Where it is killed, it has made the training rows and half of the manifest of the others.
BUILD = """
import os, pathlib, signal, sys
from hyla_lm.data import preparation, sample_corpus
sample_corpus.installed_roots = lambda: [pathlib.Path({root!r})]
def killed(folder, manifest):
    real(folder, manifest) if manifest.split == "train" else os.kill(os.getpid(), signal.SIGKILL)
real = preparation.write_manifest
if sys.argv[2:] == ["killed"]:
    preparation.write_manifest = killed
sample_corpus.SampleCorpus(sys.argv[1], 512, 16).prepare()
"""


@pytest.fixture(autouse=True)
def small_root(python_root: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    root = python_root(120)
    monkeypatch.setattr("hyla_lm.data.sample_corpus.installed_roots", lambda: [root])
    return root


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_it_is_reproducible_and_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (SampleCorpus(str(tmp_path / name), 512, 16) for name in "ab")
    rows = first.prepare()
    second.prepare()
    made = hashes(tmp_path / "a")
    assert made == hashes(tmp_path / "b") and len(made) == 9
    for step in ("collect", "train_tokenizer"):  # rows of another length need neither
        monkeypatch.setattr(f"hyla_lm.data.sample_corpus.{step}", None)
    longer = SampleCorpus(str(tmp_path / "a"), 512, 32).prepare()
    assert longer.tokenizer == rows.tokenizer
    assert read_manifest(longer.train).sequence_length == 32
    monkeypatch.setattr("hyla_lm.data.sample_corpus.write_rows", None)
    assert first.prepare() == rows


def test_a_killed_build_leaves_nothing_that_passes(tmp_path: Path, small_root: Path) -> None:
    command = [sys.executable, "-c", BUILD.format(root=str(small_root)), str(tmp_path), "killed"]
    killed = preloaded.run(command, cwd=CHECKOUT, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    home = next(tmp_path.glob("sample-*"))
    assert len(list(home.rglob("manifest.json"))) == 1
    assert read_manifest(SampleCorpus(str(tmp_path), 512, 16).prepare().validation).rows


def test_two_at_once_make_the_same_rows(tmp_path: Path, small_root: Path) -> None:
    code = BUILD.format(root=str(small_root))
    commands = [[sys.executable, "-c", code, str(tmp_path / "both")] for _ in range(2)]
    both = [preloaded.Popen(command, cwd=CHECKOUT) for command in commands]
    assert [process.wait() for process in both] == [0, 0]
    SampleCorpus(str(tmp_path / "one"), 512, 16).prepare()
    assert hashes(tmp_path / "both") == hashes(tmp_path / "one")


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="SampleCorpus.cache: .* cannot be written"):
        SampleCorpus(str(tmp_path / "file"), 512, 16).prepare()
