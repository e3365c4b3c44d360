"""Mistakes in the commands on data: status 2, one sentence, and no folder that looks whole."""

import gzip
import os
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from hyla_lm.cli.main import main
from hyla_lm.data.verify import verify
from hyla_lm.errors import UserError
from hyla_lm.input.documents import read_texts
from hyla_lm.input.manifest import MANIFEST, read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.data.conftest import prose, with_special
from tests.data.test_own_text import lines_of, write_parquet

OWN = ("prepare", "--output=OUT", "--train_tokenizer")
ROWS = ("prepare", "--input=c4/c4-train.*", "--output=OUT", "--tokenizer=good.model")
ROWS_OF_16 = (*ROWS, "--sequence_length=16")
TEXTS = [prose(seed, 3) for seed in range(9)]
LONG_LINE = gzip.compress(b'{"text": "a"}\n' + bytes(80 << 20), compresslevel=1)


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


ZIPPED = gzip.compress(lines_of("text").encode())
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
FAULTY = {
    "blank.txt": (b"\n \r\n", "all of blank.txt is blank: give files with text"),
    "latin.txt": (b"caf\xe9 " * 9, "latin.txt is not UTF-8 at byte 3: convert it"),
    "latin.jsonl": (b'{"text": "a"}\n{"text": "\xe9"}', "latin.jsonl: line 2 is not UTF-8: con"),
    "wide.txt": ("a text".encode("utf-16"), "wide.txt is UTF-16: convert it"),
    "wide.jsonl": (lines_of("text").encode("utf-16"), "wide.jsonl is UTF-16: convert it"),
    "body.jsonl": (lines_of("body").encode(), "body.jsonl: line 1 .*'id', 'body'.*--field"),
    "pretty.json": (b'{\n "text": "a"\n}', "pretty.json: line 1 .* one object per line"),
    "null.jsonl": (
        b'\n{"text": "a"}\n{"text": null}\n',
        "null.jsonl: line 3 has no text in 'text'.*mend that file",
    ),
    "empty.jsonl": (b"", "empty.jsonl is empty"),
    "cut.json.gz": (ZIPPED[:-9], "cut.json.gz is cut short"),
    "flipped.json.gz": (flipped(ZIPPED, len(ZIPPED) // 2), "flipped.json.gz is .* damaged"),
    "plain.txt.gz": (b"this is not compressed", "plain.txt.gz is no gzip data"),
    "cut.md.zst": (
        pyarrow.compress(b"a text" * 99, "zstd", asbytes=True)[:-5],
        "cut.md.zst cannot be read .Truncated",
    ),
    "damaged.parquet": (b"PAR1 no more", "damaged.parquet is no parquet file"),
    "long.jsonl.gz": (LONG_LINE, "long.jsonl.gz: line 2 has more than 67,108,864 bytes"),
    "pointer.md": (POINTER, "pointer.md is a Git LFS pointer"),
    "pointer.json.gz": (POINTER, "pointer.json.gz is a Git LFS pointer"),
    "pointer.arrayrecord": (POINTER, "pointer.arrayrecord is a Git LFS pointer"),
    "page.txt.gz": (gzip.compress(b"\n<!DOCTYPE HTML>"), "page.txt.gz is an HTML page"),
    "page.ndjson": (b"<HTML lang=en>", "page.ndjson is an HTML page"),
    "page.parquet": (b"<html>", "page.parquet is an HTML page"),
}
OF_INPUTS = {
    "empty": "--input = empty holds no text: give .txt",
    "pictures": "--input = pictures holds no text: give .txt",
    "part.*": "shard 00001 of the 2 of",
    "body.parquet": "body.parquet has no column 'text' .*'id'.*--field",
    "latin.parquet": "latin.parquet: column 'text' is not UTF-8: convert",
    "pipes": "pipe.txt is no file: give .txt",
    "https://host/a.txt": "https://host/a.txt is no path of a disk",
    "oss://a/*.txt": "a/..txt is no path of a disk",
    **{name: sentence for name, (_, sentence) in FAULTY.items()},
}


@pytest.fixture
def home(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with a fault each, and some without; the working folder."""
    monkeypatch.chdir(tmp_path)
    good = {"good.txt": prose(0, 60).encode(), "good.model": Path(tokenizer.path).read_bytes()}
    faulty = {name: content for name, (content, _) in FAULTY.items()}
    for name, content in (good | faulty | {"part.00000-of-00002.txt": b"a"}).items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "pipes").mkdir()
    os.mkfifo(tmp_path / "pipes" / "pipe.txt")
    write_json_gz(["a"] * 3, tmp_path / "c4", "train", 3)
    for name in ("body", "text"):
        write_parquet(tmp_path / f"{name}.parquet", name)
    latin = pyarrow.array([b"a", b"\xe9"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": latin}), tmp_path / "latin.parquet")
    for name in ("empty", "pictures", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    (tmp_path / "other" / "file").write_bytes(b"")
    return tmp_path


GOOD = (*OWN, "--input=good.txt")
PLAIN = ("prepare", "--input=good.txt", "--output=OUT")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *(((*OWN, f"--input={name}"), sentence) for name, sentence in OF_INPUTS.items()),
        ((*OWN, "--input=text.parquet", "--field=id"), "text.parquet: row 1 .*--field"),
        ((*GOOD, "--output=other"), "other holds other files: give a new"),
        ((*GOOD, "--vocab_size=9999"), "vocab_size = 9999 .*a value <= "),
        ((*GOOD, "--sequence_length=0"), "--sequence_length=0 must be"),
        ((*GOOD, "--validation_fraction=1"), "--validation_fraction=1.0 must"),
        ((*GOOD, "--split=train"), "--split needs --tokenizer"),
        ((*OWN, "--task=c4_lm"), "--train_tokenizer needs --input"),
        ((*PLAIN, "--tokenizer=a"), "--sequence_length"),
        ((*PLAIN, "--tokenizer=a", "--vocab_size=9"), "--vocab_size needs --train_tokenizer"),
        ((*ROWS_OF_16, "--shards=4"), "would hold no text: give fewer --shards"),
        ((*ROWS_OF_16, "--output=good.txt"), "good.txt.* cannot be written"),
        (("tokenizer", "--input=blank.txt", "--output=a.model"), "without text: give --input"),
    ],
)
def test_a_mistake_is_one_sentence(
    home: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    try:
        status = main(["data", *arguments])
    except SystemExit as usage:
        status = usage.code
    err = capsys.readouterr().err
    assert status == 2 and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("hyla-lm data") and re.search(sentence, last), err
    assert not list(home.rglob(MANIFEST)) and len(list(home.rglob("*.model"))) == 1


@pytest.mark.parametrize("write", [write_json_gz, write_array_records])
def test_no_bit_that_differs_in_a_file_changes_its_texts(tmp_path: Path, write: Any) -> None:
    chance, file = random.Random(0), write(TEXTS, tmp_path, "train", 1)[0]
    data, damaged = file.read_bytes(), 0
    filled = np.flatnonzero(np.frombuffer(data, np.uint8)).tolist()
    for _ in range(40):
        file.write_bytes(flipped(data, chance.choice(filled), chance.randrange(8)))
        try:
            assert list(read_texts(str(file))) == TEXTS
        except UserError as error:
            assert file.name in str(error)
            damaged += 1
    assert damaged > 30


def test_without_bos_documents_start_with_pad(home: Path) -> None:
    tokenizer = with_special(home / "t5", bos_id=-1, eos_id=1, pad_id=0, unk_id=2)
    write_json_gz([*TEXTS, ""], home, "train", 1)
    files = ("prepare", "--input", "c4-train.00000-of-00001.json.gz", "--output=OUT")
    assert main(["data", *files, "--sequence_length=16", f"--tokenizer={tokenizer.path}"]) == 0
    manifest = read_manifest("OUT")
    assert manifest.special_ids == {"bos": -1, "eos": 1, "pad": 0, "unk": 2}
    assert manifest == verify("OUT")
    rows = RowReader("OUT", manifest).read(range(manifest.rows))["tokens"]
    stream = np.append(rows[0, :1], rows[:, 1:]).tolist()
    wanted = [token for text in [*TEXTS, ""] for token in (0, *tokenizer.encode(text), 1)]
    assert stream == wanted + [0] * (len(stream) - len(wanted))


@pytest.mark.parametrize("lacking", [{"bos_id": -1, "pad_id": -1}, {"eos_id": -1}])
def test_without_what_marks_documents_a_tokenizer_is_refused(
    home: Path, capsys: pytest.CaptureFixture[str], lacking: dict[str, int]
) -> None:
    model = f"--tokenizer={with_special(home / 'some', **lacking).path}"
    assert main(["data", *ROWS_OF_16, model]) == 2
    assert "some.model lacks EOS, or both BOS and PAD" in capsys.readouterr().err
    assert not (home / "OUT").exists()
