"""Five ways from the same documents to tokens give the same tokens, document by document."""

from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.preparation import Preparation, prepare
from hyla_lm.data.text_files import TextFiles
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.source import Reading
from hyla_lm.input.stream import C4Stream
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import list_files
from tests.seqio.conftest import C4, TRAIN

pytestmark = pytest.mark.seqio
LENGTH = 16
Documents = list[tuple[int, ...]]


def expected(c4: C4) -> Documents:
    t = c4.tokenizer
    return sorted((t.bos, *t.encode(text), t.eos) for text in TRAIN)


def documents_of_rows(rows: np.ndarray, bos: int) -> Documents:
    """Whole documents of one shard's rows."""
    stream = [*rows[0, :1].tolist(), *rows[:, 1:].ravel().tolist(), bos]
    starts = [i for i in range(len(stream)) if stream[i] == bos]
    return [tuple(stream[a:b]) for a, b in pairwise(starts) if b - a > 1]


def documents_of_folder(folder: Path, c4: C4) -> Documents:
    manifest = read_manifest(folder)
    rows = RowReader(folder, manifest).read(range(manifest.rows))["tokens"]
    ends = np.cumsum([shard.rows for shard in manifest.shards])[:-1]
    parts = np.split(rows, ends)
    return sorted(d for part in parts for d in documents_of_rows(part, c4.tokenizer.bos))


def documents_of_stream(files: Path, c4: C4) -> Documents:
    """The first epoch of a stream."""
    source = C4Stream((f"{files}/c4-train*",), (f"{files}/c4-validation*",), c4.tokenizer.path)
    stream = source.open(LENGTH, 4, Reading()).train.stream(BatchShard(4), None)
    tokens = sum(map(len, expected(c4)))
    rows = np.concatenate([b["tokens"] for b in islice(stream, tokens // (4 * LENGTH) + 2)])
    stream.close()
    return sorted(documents_of_rows(rows, c4.tokenizer.bos)[: len(TRAIN)])


def prepared_task(c4: C4, task: str, output: Path) -> Documents:
    from hyla_lm.data.seqio_documents import TaskDocuments

    documents = TaskDocuments(task, "train", c4.tokenizer, c4.tasks())
    documents.check()
    shards = documents.default_shards()
    prepare(Preparation(documents, c4.tokenizer, str(output), "train", LENGTH, shards))
    return documents_of_folder(output, c4)


@pytest.mark.parametrize("task", ["c4_lm", "c4_lm_json"])
def test_seqio_tasks_give_the_tokens(c4: C4, tmp_path: Path, task: str) -> None:
    assert prepared_task(c4, task, tmp_path / "rows") == expected(c4)
    assert len(list((tmp_path / "rows").glob("*.arrayrecord"))) == 4


def test_streams_give_the_tokens(c4: C4) -> None:
    for files in (c4.array_record, c4.json):
        assert documents_of_stream(files, c4) == expected(c4)


def test_preparation_gives_the_tokens(c4: C4, tmp_path: Path) -> None:
    files = TextFiles(list_files([f"{c4.json}/c4-train*"], "--input"))
    folder = tmp_path / "rows"
    prepare(Preparation(files, c4.tokenizer, str(folder), "train", LENGTH, 4), workers=2)
    assert documents_of_folder(folder, c4) == expected(c4)
