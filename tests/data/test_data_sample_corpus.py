"""The sample corpus as a data source: reproducible and built once."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from hyla_lm.data.sample_corpus import SampleCorpus
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import read_manifest


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


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="SampleCorpus.cache: .* cannot be written"):
        SampleCorpus(str(tmp_path / "file"), 512, 16).prepare()
