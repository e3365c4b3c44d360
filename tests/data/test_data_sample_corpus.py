"""The sample corpus as a data source: reproducible, built once, and never half there."""

import hashlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.data import sample_corpus
from hyla_lm.data.sample_corpus import SampleCorpus
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.source import DataSource, open_rows
from hyla_lm.input.tokenizer import Tokenizer
from tests import preloaded

CHECKOUT = Path(sample_corpus.__file__).resolve().parents[1]
BUILD = """
import os, pathlib, signal, sys
from hyla_lm.data import sample_corpus
sample_corpus.installed_roots = lambda: [pathlib.Path({root!r})]
if sys.argv[2:] == ["killed"]:
    sample_corpus.baselines = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
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


def test_prepare_is_reproducible_and_builds_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (SampleCorpus(str(tmp_path / name), 512, 16) for name in "ab")
    assert isinstance(first, DataSource)
    rows = first.prepare()
    second.prepare()
    made = hashes(tmp_path / "a")
    assert made == hashes(tmp_path / "b") and len(made) == 9
    monkeypatch.setattr("hyla_lm.data.sample_corpus.write_rows", None)
    assert first.prepare() == rows
    for folder in (rows.train, rows.validation):
        open_rows(folder, Tokenizer(rows.tokenizer), 16, 1)
    baselines = read_manifest(Path(rows.validation)).baselines_bits_per_byte
    assert set(baselines) == {"token bigram", "gzip -9", "xz -9"}
    assert all(0 < bits < 8 for bits in baselines.values())


def test_sequence_lengths_share_corpus_and_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = SampleCorpus(str(tmp_path), 512, 16).prepare()
    monkeypatch.setattr("hyla_lm.data.sample_corpus.collect", None)
    monkeypatch.setattr("hyla_lm.data.sample_corpus.train_tokenizer", None)
    long = SampleCorpus(str(tmp_path), 512, 32).prepare()
    assert short.tokenizer == long.tokenizer
    assert read_manifest(Path(long.train)).sequence_length == 32


def test_a_killed_build_leaves_nothing_that_passes(tmp_path: Path, small_root: Path) -> None:
    code = BUILD.format(root=str(small_root))
    command = [sys.executable, "-c", code, str(tmp_path), "killed"]
    killed = preloaded.run(command, cwd=CHECKOUT, capture_output=True, timeout=60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    home = next(tmp_path.glob("sample-*"))
    assert len(list(home.rglob("manifest.json"))) == 1
    rows = SampleCorpus(str(tmp_path), 512, 16).prepare()
    assert read_manifest(Path(rows.validation)).baselines_bits_per_byte


def test_two_at_once_make_the_same_rows(tmp_path: Path, small_root: Path) -> None:
    code = BUILD.format(root=str(small_root))
    commands = [[sys.executable, "-c", code, str(tmp_path / "both")] for _ in range(2)]
    both = [preloaded.Popen(command, cwd=CHECKOUT) for command in commands]
    assert [process.wait() for process in both] == [0, 0]
    SampleCorpus(str(tmp_path / "one"), 512, 16).prepare()
    assert hashes(tmp_path / "both") == hashes(tmp_path / "one")


def test_unfit_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SampleCorpus.vocab_size"):
        SampleCorpus(vocab_size=100)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="SampleCorpus.cache"):
        SampleCorpus(str(tmp_path / "file"), 512, 16).prepare()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--cache", str(tmp_path), "--vocab_size", "512", "--sequence_length", "16"]
    assert main(["data", "sample_corpus", *arguments]) == 0
    printed = capsys.readouterr().out.split()
    assert len(printed) == 3 and all(Path(path).exists() for path in printed)
