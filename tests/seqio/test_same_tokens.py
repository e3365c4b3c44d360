"""The ways from the same documents to tokens give the same tokens, document by document."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.preparation import Preparation, prepare
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.rows import RowReader
from hyla_lm.input.source import Reading
from hyla_lm.input.stream import C4Stream
from hyla_lm.parallel.sharding import BatchShard
from tests.data.conftest import documents_in
from tests.seqio.conftest import C4, TRAIN

pytestmark = pytest.mark.seqio
LENGTH = 16
Documents = list[tuple[int, ...]]


def expected(c4: C4) -> Documents:
    t = c4.tokenizer
    return sorted((t.bos, *t.encode(text), t.eos) for text in TRAIN)


def documents_of_folder(folder: Path, c4: C4) -> Documents:
    manifest = read_manifest(folder)
    rows = RowReader(folder, manifest).read(range(manifest.rows))["tokens"]
    ends = np.cumsum([shard.rows for shard in manifest.shards])[:-1]
    parts = np.split(rows, ends)
    return sorted(tuple(ids) for part in parts for ids in documents_in(part, c4.tokenizer.bos))


def documents_of_stream(files: Path, c4: C4) -> Documents:
    """The first epoch of a stream."""
    source = C4Stream((f"{files}/c4-train*",), (f"{files}/c4-validation*",), c4.tokenizer.path)
    stream = source.open(LENGTH, 4, Reading()).train.stream(BatchShard(4), None)
    tokens = sum(map(len, expected(c4)))
    rows = np.concatenate([b["tokens"] for b in islice(stream, tokens // (4 * LENGTH) + 2)])
    stream.close()
    return sorted(map(tuple, documents_in(rows, c4.tokenizer.bos)[: len(TRAIN)]))


def test_a_seqio_task_gives_the_tokens(c4: C4, tmp_path: Path) -> None:
    from hyla_lm.data.seqio_documents import TaskDocuments

    task, folder = TaskDocuments("c4_lm", "train", c4.tokenizer, c4.tasks()), tmp_path / "rows"
    task.check()
    shards = task.default_shards()
    prepare(Preparation(task, c4.tokenizer, str(folder), "train", LENGTH, shards))
    assert documents_of_folder(folder, c4) == expected(c4)
    assert len(list(folder.glob("*.arrayrecord"))) == 4


def test_streams_give_the_tokens(c4: C4) -> None:
    for files in (c4.array_record, c4.json):
        assert documents_of_stream(files, c4) == expected(c4)
