"""Own text in one command: what is read, what is held out, and what the folder holds then."""

import gzip
import io
import json
import os
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from hyla_lm.cli import text_input
from hyla_lm.cli.main import main
from hyla_lm.data import own_text, preparation, text_files
from hyla_lm.data.own_text import cut, is_held_out
from hyla_lm.data.text_files import find_text_files
from hyla_lm.data.verify import verify
from hyla_lm.errors import UserError
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
    flags = ["--output", str(output), "--sequence_length=16"]
    return main(["data", "prepare", str(source), *flags, "--train_tokenizer", "--workers=1", *more])


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


def test_what_is_left_out_is_counted_and_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.tsv", "c.pdf", "Makefile", ".hidden"):
        (folder / name).write_text("no text")
    (folder / "blank.txt").write_text(" \n")
    (folder / "empty.md").write_text("")
    (folder / "rows.ndjson").write_text('{"text": "one"}\n{"text": 7}\n["two"]\n{\n')
    parquet.write_table(pyarrow.table({"text": ["three", None]}), folder / "rows.parquet")
    more = ("--on_error=skip", "--suffix=tsv")
    for _ in range(2):  # the second time, rows in the folder of the text are not read
        assert prepare(folder, folder / "rows", *more) == 0
        out, err = capsys.readouterr()
        assert "documents: 33, files: 35, blank documents left out: 2" in out
        assert f"left out, files of other kinds: 3 ({folder}/Makefile, " in err
        rows = f"{folder}/rows.ndjson, {folder}/rows.parquet"
        assert f"left out, rows without text: 4 ({rows})" in err


def write_parquet(path: Path, column: str) -> None:
    parquet.write_table(pyarrow.table({column: TEXTS, "id": range(len(TEXTS))}), path)


def lines_of(field: str) -> str:
    return "".join(json.dumps({"id": 1, field: text}) + "\n" for text in TEXTS)


MARKED, PLAIN = b"\xef\xbb\xbfa\r\nb\rc\r\n", "a\nb\rc\n"
OF_NAMES = {
    "notes.MD": (MARKED, [PLAIN]),
    "my array_record.txt": (b"a", ["a"]),
    "draft.Txt.GZ": (
        gzip.compress(MARKED) + bytes(700) + gzip.compress(b"d") + bytes(9),
        [PLAIN + "d"],
    ),
    "a.JSON": (b'\xef\xbb\xbf{"body": "a\\r\\nb"}\r\n', ["a\r\nb"]),
    "a.ndjson.zst": (2 * pyarrow.compress(b'{"body": "a"}\n', "zstd", asbytes=True), ["a", "a"]),
    "a.py.gz": (gzip.compress(MARKED), [PLAIN]),
    "[a].HTML": (b"<html>a", ["<html>a"]),
}


@pytest.mark.parametrize("name", OF_NAMES)
def test_the_end_of_a_name_is_the_kind_of_a_file(tmp_path: Path, name: str) -> None:
    content, texts = OF_NAMES[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / "a.HTML").write_bytes(b"another")
    suffixes = (".py", ".html")
    (file,) = find_text_files([str(tmp_path / name)], suffixes=suffixes)
    assert list(read_texts(file, "body", suffixes)) == texts
    write_parquet(tmp_path / "a.Parquet", "body")
    assert list(read_texts(f"{tmp_path}/a.Parquet", "body")) == TEXTS


@pytest.mark.parametrize("content", [MARKED, b"a\xff"])
def test_a_text_is_the_same_however_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    for read, *source in (
        (text_input.content, "--input", str(path)),
        (text_input.content, "--prompt", "-"),
        (text_input.argument, "--text", os.fsdecode(content)),
    ):
        if content == MARKED:
            assert read(*source) == PLAIN
        else:
            with pytest.raises(UserError, match="is not UTF-8 at byte 1"):
                read(*source)


def test_shards_are_as_many_as_the_text_is_worth(
    folder: Path, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = [f"--tokenizer={tokenizer.path}", "--sequence_length=16", "--workers=1"]
    for size, shards in ((32_000_000, 1), (7_000, 2), (1, 30)):
        monkeypatch.setattr(text_files, "SHARD_BYTES", size)
        rows = tmp_path / str(size)
        assert main(["data", "prepare", str(folder), f"--output={rows}", *model]) == 0
        assert len(read_manifest(rows).shards) == shards


def test_of_little_text_the_tokenizer_has_fewer_pieces(folder: Path, tmp_path: Path) -> None:
    assert prepare(folder, tmp_path / "rows") == 0
    pieces = Tokenizer(str(tmp_path / "rows/tokenizer.model")).vocab_size
    assert pieces < own_text.VOCAB_SIZE
    assert prepare(folder, tmp_path / "new", "--vocab_size=3000") == 2
    assert prepare(folder, tmp_path / "new", "--vocab_size=400") == 0  # nothing was made of 3000
