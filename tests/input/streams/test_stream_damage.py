"""Text that cannot be streamed: damaged shards, no documents, settings that do not fit."""

import shutil
from itertools import islice
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.errors import UserError
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import list_files
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.input.streams.reading import BATCH, KINDS, TEXTS, opened, source_of


@pytest.fixture(params=KINDS)
def damaged(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a folder of shards, to damage."""
    return Path(shutil.copytree(folders[request.param], tmp_path / "copy"))


def run_through(folder: Path, tokenizer: Tokenizer) -> None:
    """Opens a folder and reads more than an epoch."""
    data = opened(source_of(folder, tokenizer.path))
    stream = data.train.stream(BatchShard(BATCH), None)
    try:
        for _ in islice(stream, 400):
            pass
    finally:
        stream.close()


@pytest.mark.parametrize("damage", ["cut short", "empty", "flipped", "missing"])
def test_a_damaged_shard_is_named(damaged: Path, tokenizer: Tokenizer, damage: str) -> None:
    shard = sorted(damaged.glob("c4-train*"))[1]
    content = bytearray(shard.read_bytes())
    if damage == "missing":
        shard.unlink()
    else:
        content[len(content) // 2] ^= 16
        cut = {"cut short": len(content) * 2 // 3, "empty": 0, "flipped": len(content)}[damage]
        shard.write_bytes(content[:cut])
    with pytest.raises(UserError) as caught:
        run_through(damaged, tokenizer)
    named = "00001 of the 4" if damage == "missing" else shard.name
    assert named in str(caught.value)


def test_records_without_text_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write_array_records(TEXTS, tmp_path, "train", 1)
    write_json_gz(TEXTS[:3], tmp_path, "validation", 1)
    shard = next(tmp_path.glob("c4-train*"))
    writer = ArrayRecordWriter(str(shard), "group_size:1")
    writer.write(b"no example")
    writer.close()
    with pytest.raises(UserError, match=shard.name):
        run_through(tmp_path, tokenizer)


def test_files_without_documents_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "c4-train.jsonl").write_text("\n \n")
    (tmp_path / "c4-validation.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(UserError, match=r"c4-train.jsonl.* hold no document"):
        run_through(tmp_path, tokenizer)


def test_unfit_settings_are_named(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    folder = folders["json.gz"]
    with pytest.raises(UserError, match="C4Stream.validation is not set"):
        opened(C4Stream(train=("a",), tokenizer="b"))
    with pytest.raises(UserError, match="C4Stream.train = .*nothing.* matches no file"):
        opened(C4Stream((f"{folder}/nothing*",), (f"{folder}/*",), tokenizer.path))
    mixed = (f"{folder}/c4-train*", f"{folders['ArrayRecord']}/c4-train*")
    with pytest.raises(UserError, match="mixes ArrayRecord"):
        opened(C4Stream(mixed, (f"{folder}/c4-validation*",), tokenizer.path))
    twice = (f"{folder}/c4-train*", f"{folder}/c4-train.00001-of-00004.json.gz")
    with pytest.raises(UserError, match="00001-of-00004.json.gz twice"):
        list_files(twice, "C4Stream.train")
    assert len(list_files((f"{folder}/c4-train.0000[12]*",), "C4Stream.train")) == 2
