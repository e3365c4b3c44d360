"""Own text in one command: what is read, what is held out, and what the folder holds then."""

import gzip
import json
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from hyla_lm.cli.main import main
from hyla_lm.data import own_text, preparation
from hyla_lm.data.own_text import cut, is_held_out
from hyla_lm.data.verify import verify
from hyla_lm.input.documents import read_texts
from hyla_lm.input.manifest import MANIFEST, read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.conftest import documents_in, prose

pytestmark = pytest.mark.usefixtures("programs_once")

TEXTS = [f"{prose(seed, 6)}\n" for seed in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of 30 texts, in folders of it too."""
    for index, text in enumerate(TEXTS):
        place = tmp_path / "text" / str(index % 3)
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index}.{'md' if index % 2 else 'txt'}").write_text(text)
    return tmp_path / "text"


def prepare(source: Path, output: Path, *more: str) -> int:
    flags = ["--input", str(source), "--output", str(output), "--sequence_length=16"]
    return main(["data", "prepare", *flags, "--train_tokenizer", "--workers=1", *more])


def documents_of(rows: Path, split: str) -> list[str]:
    """The texts that the rows of a split hold."""
    manifest, tokenizer = read_manifest(rows / split), Tokenizer(str(rows / "tokenizer.model"))
    tokens = RowReader(rows / split, manifest).read(range(manifest.rows))["tokens"]
    return [tokenizer.decode(ids[1:-1]) for ids in documents_in(tokens, tokenizer.bos)]


def test_every_document_is_in_one_split(folder: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    assert prepare(folder, rows, "--validation_fraction=0.2") == 0
    for split in ("train", "validation"):
        held = [text for text in TEXTS if is_held_out(text, 0.2) == (split == "validation")]
        assert sorted(documents_of(rows, split)) == sorted(held)
        verify(str(rows / split))


def test_of_few_documents_the_ends_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "text"
    source.mkdir()
    texts = [prose(seed, 100) for seed in range(3)]
    for index, text in enumerate(texts):
        (source / f"{index}.txt").write_text(text)
    assert prepare(source, tmp_path / "rows") == 0
    assert "validation: the last 0.05 of each document" in capsys.readouterr().out
    heads, tails = (documents_of(tmp_path / "rows", split) for split in ("train", "validation"))
    assert [head + tail for head, tail in zip(heads, tails, strict=True)] == texts
    assert all(head.endswith("\n") for head in heads)
    assert 0.02 < sum(map(len, tails)) / sum(map(len, texts)) < 0.08


def test_one_large_document_among_many_is_not_held_out_whole(tmp_path: Path) -> None:
    small = [prose(seed, 1) for seed in range(40)]
    large = next(t for t in (prose(seed, 200) for seed in range(900, 999)) if is_held_out(t, 0.05))
    lines = [json.dumps({"text": text}) for text in [*small, large]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert prepare(tmp_path / "a.jsonl", tmp_path / "rows") == 0
    train, validation = (read_manifest(tmp_path / "rows" / s) for s in ("train", "validation"))
    assert train.text_bytes > 10 * validation.text_bytes


@given(st.text(alphabet="ab \n", max_size=200), st.floats(0.01, 0.9))
def test_a_cut_loses_nothing_and_leaves_no_blank_part(text: str, fraction: float) -> None:
    head, tail = cut(text, fraction)
    assert head + tail == text
    assert tail == "" or (head.strip() and tail.strip())


def test_the_same_command_changes_nothing_and_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows"
    assert prepare(folder, rows) == 0
    made = {p: p.read_bytes() for p in rows.rglob("*") if p.is_file()}
    times = {p: p.stat().st_mtime_ns for p in made}
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_make_shards", None)
        assert prepare(folder, rows) == 0
    assert times == {p: p.stat().st_mtime_ns for p in made}
    for lost in ("tokenizer.model", f"train/{MANIFEST}", f"validation/{MANIFEST}"):
        (rows / lost).unlink()
        for report in rows.rglob("*.arrayrecord"):
            report.unlink() if report.parent.name == lost.partition("/")[0] else None
        assert prepare(folder, rows) == 0
        assert {p: p.read_bytes() for p in rows.rglob("*") if p.is_file()} == made


def test_files_of_other_kinds_and_blank_documents_are_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.png", "c.pdf", "Makefile", ".hidden"):
        (folder / name).write_text("no text")
    (folder / "blank.txt").write_text(" \n")
    (folder / "empty.md").write_text("")
    for _ in range(2):  # the second time, rows in the folder of the text are not read
        assert prepare(folder, folder / "rows") == 0
        out, err = capsys.readouterr()
        assert "documents: 30, files: 32, blank documents left out: 2" in out
        assert "left out, files of other kinds: 4" in err


def write_parquet(path: Path, column: str) -> None:
    parquet.write_table(pyarrow.table({column: TEXTS, "id": range(len(TEXTS))}), path)


def lines_of(field: str) -> str:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in TEXTS)


def test_fields_of_all_kinds_of_files(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", "body")
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines_of("body").encode()))
    for name in ("a.parquet", "a.json.gz"):
        assert list(read_texts(str(tmp_path / name), field="body")) == TEXTS


def test_text_files_have_lf_and_no_mark_and_others_are_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\rc\r\n")
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a\\r\\nb"}\r\n')
    assert list(read_texts(str(tmp_path / "a.txt"))) == ["a\nb\rc\n"]
    assert list(read_texts(str(tmp_path / "a.jsonl"))) == ["a\r\nb"]


def test_of_little_text_the_tokenizer_has_fewer_pieces(folder: Path, tmp_path: Path) -> None:
    assert prepare(folder, tmp_path / "rows") == 0
    pieces = Tokenizer(str(tmp_path / "rows/tokenizer.model")).vocab_size
    assert pieces < own_text.VOCAB_SIZE
    assert prepare(folder, tmp_path / "new", "--vocab_size=3000") == 2
    assert prepare(folder, tmp_path / "new", "--vocab_size=400") == 0  # nothing was made of 3000
