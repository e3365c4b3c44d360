"""Streaming text: every document once an epoch, exact resumption at any token, faults are named."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.errors import UserError
from hyla_lm.input import stream
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from tests.conftest import sentences
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.data.conftest import documents_in

LENGTH, BATCH, SHARDS = 16, 4, 4
# Documents shorter than a row, longer than several blocks of rows, empty, and not ASCII.
TEXTS = [sentences(seed, 1 + seed % 5) for seed in range(150)] + [
    "",
    "é🙂 naïve\ttext\nof lines",
    sentences(7, 150),
    *(sentences(seed, 2) for seed in range(1000, 1040)),
]
WRITERS = {"json.gz": write_json_gz, "ArrayRecord": write_array_records}
Document = tuple[int, ...]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same documents in C4's two layouts."""
    home = tmp_path_factory.mktemp("c4")
    for kind, write in WRITERS.items():
        write(TEXTS, home / kind, "train", SHARDS)
        write(TEXTS[:30], home / kind, "validation", 2)
    return {kind: home / kind for kind in WRITERS}


@pytest.fixture(params=WRITERS)
def folder(request: pytest.FixtureRequest, folders: dict[str, Path]) -> Path:
    return folders[request.param]


@pytest.fixture
def source(folder: Path, tokenizer: Tokenizer) -> C4Stream:
    return source_of(folder, tokenizer)


def source_of(folder: Path, tokenizer: Tokenizer, **settings: Any) -> C4Stream:
    files = ((f"{folder}/c4-{split}.*",) for split in ("train", "validation"))
    return C4Stream(*files, tokenizer.path, **settings)


def opened(source: C4Stream, **reading: int) -> LanguageData:
    return source.open(LENGTH, BATCH, Reading(**reading))


def batches(
    data: LanguageData,
    count: int,
    shard: BatchShard = BatchShard(BATCH),  # noqa: B008
    states: list[dict] | None = None,
    of: str = "tokens",
) -> tuple[np.ndarray, list[dict]]:
    """An array of the next batches, and the state after each (with that before the first)."""
    stream = data.train.stream(shard, states)
    saved, arrays = [stream.get_state()], []
    for batch in islice(stream, count):
        arrays.append(batch[of])
        saved.append(stream.get_state())
    stream.close()
    return np.stack(arrays), saved


def whole_documents(tokens: np.ndarray, tokenizer: Tokenizer) -> list[Document]:
    """The documents that rows were cut from, in order; one cut at the end is left out."""
    rows = tokens.reshape(-1, LENGTH + 1)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    return list(map(tuple, documents_in(rows, tokenizer.bos)[:-1]))


def expected_documents(tokenizer: Tokenizer) -> list[Document]:
    return [(tokenizer.bos, *tokenizer.encode(text), tokenizer.eos) for text in TEXTS]


def test_every_epoch_holds_each_document_once(source: C4Stream, tokenizer: Tokenizer) -> None:
    wanted = expected_documents(tokenizer)
    per_epoch = sum(map(len, wanted))
    tokens, _ = batches(opened(source), 2 * per_epoch // (BATCH * LENGTH) + 1)
    found = whole_documents(tokens, tokenizer)
    first, second = found[: len(wanted)], found[len(wanted) : 2 * len(wanted)]
    assert sorted(first) == sorted(second) == sorted(wanted)
    assert first != second


def test_the_order_is_of_the_seed_and_not_of_threads(folder: Path, tokenizer: Tokenizer) -> None:
    data = opened(source_of(folder, tokenizer))
    several = opened(source_of(folder, tokenizer), threads=4, ahead=2)
    first, other = (batches(data, 60, BatchShard(BATCH, seed)) for seed in (3, 4))
    hurried = batches(several, 60, BatchShard(BATCH, 3))
    np.testing.assert_array_equal(first[0], hurried[0])
    assert first[1] == hurried[1] and (first[0] != other[0]).any()


def test_every_saved_state_continues_exactly(
    source: C4Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "DOCUMENTS_PER_BLOCK", 3)  # so that five batches have several
    data = opened(source)
    tokens, states = batches(data, 200)
    text_bytes = batches(data, 200, of="text_bytes")[0]
    for step in [*range(0, 40, 3), *range(40, 190, 17)]:
        saved = [json.loads(json.dumps(states[step]))]
        assert (batches(data, 5, states=saved)[0] == tokens[step : step + 5]).all()
        resumed = batches(data, 5, states=saved, of="text_bytes")[0]
        assert (resumed == text_bytes[step : step + 5]).all()


def test_processes_divide_an_epoch(source: C4Stream, tokenizer: Tokenizer) -> None:
    found: list[Document] = []
    count = 4
    for index in range(count):
        data, shard = opened(source), BatchShard(BATCH * count, 0, index, count)
        documents = data.train.documents_of(shard)
        cursors = [cursor for cursor, _ in islice(documents.after({}), 400)]
        epoch = sum(cursor["epoch"] == 0 for cursor in cursors if "epoch" in cursor)
        epoch = epoch or len(range(index, len(TEXTS), count))  # of ArrayRecord
        found += whole_documents(batches(data, 150, shard)[0], tokenizer)[:epoch]
    assert sorted(found) == sorted(expected_documents(tokenizer))


def test_another_number_of_processes_is_refused(source: C4Stream) -> None:
    data = opened(source)
    shards = [BatchShard(BATCH * 2, 0, index, 2) for index in range(2)]
    states = [batches(data, 3, shard)[1][-1] for shard in shards]
    resumed = [batches(data, 2, shard, states)[0] for shard in shards]
    straight = [batches(data, 5, shard)[0][3:] for shard in shards]
    np.testing.assert_array_equal(resumed, straight)
    with pytest.raises(UserError, match="of 2 processes.*resume it on 2.*@Rows"):
        data.train.stream(BatchShard(BATCH * 4, 0, 0, 4), states)


def test_the_validation_set_is_whole_documents_with_exact_bytes(
    folder: Path, tokenizer: Tokenizer
) -> None:
    split = opened(source_of(folder, tokenizer, validation_documents=None)).validation
    batch = split.rows.read(range(len(split.rows)))
    assert batch["text_bytes"].sum() == split.text_bytes
    assert split.text_bytes == sum(len(text.encode()) for text in TEXTS[:30])
    weights = np.count_nonzero(batch["tokens"][:, 1:] != tokenizer.bos)
    assert weights == sum(len(tokenizer.encode(text)) + 1 for text in TEXTS[:30])
    first = opened(source_of(folder, tokenizer, validation_documents=3)).validation
    assert first.text_bytes < split.text_bytes and first.identity != split.identity


def test_files_without_text_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "c4-validation.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "c4-train.jsonl").write_text("\n \n")
    with pytest.raises(UserError, match=r"c4-train.jsonl.* hold no document"):
        batches(opened(source_of(tmp_path, tokenizer)), 1)
    (tmp_path / "c4-train.jsonl").unlink()
    shard = tmp_path / "c4-train.array_record-00000-of-00001"
    writer = ArrayRecordWriter(str(shard), "group_size:1")
    writer.write(b"no example")
    writer.close()
    with pytest.raises(UserError, match=f"{shard.name}: record 0 holds no text"):
        batches(opened(source_of(tmp_path, tokenizer)), 1)


def test_unfit_settings_are_named(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    json_files = f"{folders['json.gz']}/c4-train*"
    with pytest.raises(UserError, match=r"C4Stream.train = .*nothing.* matches no file"):
        opened(C4Stream(("nothing*",), (json_files,), tokenizer.path))
    data = opened(source_of(folders["json.gz"], tokenizer))
    with pytest.raises(UserError, match="4 files cannot feed 5 processes"):
        data.train.stream(BatchShard(BATCH * 5, 0, 0, 5), None)
