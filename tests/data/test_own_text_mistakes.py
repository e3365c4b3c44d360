"""Mistakes in the commands on data: status 2, one sentence, and no folder that looks whole."""

import gzip
import json
import os
import re
import sys
from pathlib import Path

import pytest

from hyla_lm.cli.main import main
from hyla_lm.input.manifest import MANIFEST
from tests.data.conftest import prose
from tests.data.test_own_text import lines_of, write_parquet

OWN = ("prepare", "--output=OUT", "--train_tokenizer")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Files with a fault each, and one without."""
    contents = {
        "good.txt": prose(0, 60).encode(),
        "blank.txt": b"\n \r\n",
        "latin.txt": b"caf\xe9 " * 9,
        "utf16.txt": "abc".encode("utf-16"),
        "image.png": b"\x89PNG",
        "body.jsonl": lines_of("body").encode(),
        "array.json": json.dumps(["a", "b"]).encode(),
        "pretty.json": b'{\n "text": "a"\n}',
        "null.jsonl": b'{"text": "a"}\n{"text": null}\n',
        "bytes.jsonl": b'{"text": "\xff"}',
        "empty.jsonl": b"",
        "cut.txt.gz": gzip.compress(b"some text " * 99)[:-9],
        "plain.txt.gz": b"this is not compressed",
        "damaged.parquet": b"PAR1 no more",
        "no.arrayrecord": b"no records",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    write_parquet(tmp_path / "body.parquet", "body")
    write_parquet(tmp_path / "text.parquet", "text")
    for name in ("empty", "pictures", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    (tmp_path / "other" / "file").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*OWN, "--input=absent"], "--input = absent matches no file"),
        ([*OWN, "--input=empty"], "--input = empty holds no text: give .txt"),
        ([*OWN, "--input=pictures"], "--input = pictures holds no text: give .txt"),
        ([*OWN, "--input=image.png"], "image.png is of no known format: give .txt"),
        ([*OWN, "--input", "good.txt", "."], "names .*good.txt twice"),
        ([*OWN, "--input=blank.txt"], "all of blank.txt is blank: give files with text"),
        ([*OWN, "--input=latin.txt"], r"latin.txt is not UTF-8 \(at byte 3\): convert it"),
        ([*OWN, "--input=utf16.txt"], r"utf16.txt is not UTF-8 \(at byte 0\)"),
        ([*OWN, "--input=body.jsonl"], "body.jsonl: line 1 .*'id', 'body'.*--field"),
        ([*OWN, "--input=good.txt", "body.jsonl"], "good.txt is unknown|body.jsonl is unknown"),
        ([*OWN, "--input=body.parquet"], "body.parquet has no column 'text' .*'id'.*--field"),
        ([*OWN, "--input=text.parquet", "--field=id"], "text.parquet: row 1 .*--field"),
        ([*OWN, "--input=array.json"], "array.json: line 1 holds no text .*no JSON object"),
        ([*OWN, "--input=pretty.json"], "pretty.json: line 1 .* one object a line"),
        ([*OWN, "--input=null.jsonl"], "null.jsonl: line 2 .*'text' is no string.*mend that file"),
        ([*OWN, "--input=bytes.jsonl"], "bytes.jsonl: line 1 holds no text"),
        ([*OWN, "--input=empty.jsonl"], "empty.jsonl is empty"),
        ([*OWN, "--input=cut.txt.gz"], "cut.txt.gz is cut short"),
        ([*OWN, "--input=plain.txt.gz"], "plain.txt.gz is damaged"),
        ([*OWN, "--input=damaged.parquet"], "damaged.parquet is damaged"),
        ([*OWN, "--input=no.arrayrecord"], "no.arrayrecord is damaged"),
        ([*OWN, "--input=good.txt", "--output=other"], "other holds other files: give a new"),
        ([*OWN, "--input=good.txt", "--output=good.txt"], "cannot be written|holds other files"),
        ([*OWN, "--input=good.txt", "--vocab_size=9999"], "vocab_size = 9999 .*give at most"),
        ([*OWN, "--input=good.txt", "--vocab_size=20"], "vocab_size = 20 does not suit"),
        ([*OWN, "--input=good.txt", "--vocab_size=0"], "--vocab_size=0 must be at least 1"),
        ([*OWN, "--input=good.txt", "--sequence_length=0"], "--sequence_length=0 must be"),
        ([*OWN, "--input=good.txt", "--workers=0"], "--workers=0 must be at least 1"),
        ([*OWN, "--input=good.txt", "--validation_fraction=1"], "--validation_fraction=1.0 must"),
        ([*OWN, "--input=good.txt", "--validation_fraction=nan"], "--validation_fraction=nan"),
        ([*OWN, "--input=good.txt", "--split=train"], "--split does not go with"),
        ([*OWN, "--task=c4_lm"], "--train_tokenizer needs --input"),
        ([*OWN, "--input=good.txt", "--tokenizer=a.model"], "not allowed with argument"),
        (["prepare", "--input=good.txt", "--output=OUT"], "--train_tokenizer --tokenizer is req"),
        (["prepare", "--input=good.txt", "--output=OUT", "--tokenizer=a"], "--sequence_length"),
        (
            ["prepare", "--input=good.txt", "--output=OUT", "--tokenizer=a", "--vocab_size=9"],
            "--vocab_size needs --train_tokenizer",
        ),
        (["tokenizer", "--input=absent", "--output=a.model"], "absent matches no file"),
        (["tokenizer", "--input=blank.txt", "--output=a.model"], "without text: give --input"),
        (["tokenizer", "--input=body.jsonl", "--output=a.model"], "--field names another"),
        (["verify", "OUT"], "manifest.json does not exist: give a folder of prepared rows"),
    ],
)
def test_a_mistake_is_one_sentence(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    monkeypatch.chdir(home)
    try:
        status = main(["data", *arguments])
    except SystemExit as usage:
        status = usage.code
    err = capsys.readouterr().err
    assert status == 2 and "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("hyla-lm data") and re.search(said, last), err
    assert not list(home.rglob(MANIFEST)) and not list(home.rglob("*.model"))


def test_a_file_that_may_not_be_read_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read all")
    monkeypatch.chdir(home)
    (home / "good.txt").chmod(0)
    assert main(["data", *OWN, "--input=good.txt"]) == 2
    assert "good.txt may not be read: change its permissions" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_its_commands(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["data", *OWN, "--input=text.parquet"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'hyla_lm[parquet]'" in error and "pip install -e '.[parquet]'" in error
