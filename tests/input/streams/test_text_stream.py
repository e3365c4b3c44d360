"""Streaming text: the same tokens as prepared rows, and exact resumption at any token."""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.input import stream
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from tests.input.streams.reading import (
    BATCH,
    KINDS,
    LENGTH,
    TEXTS,
    batches,
    documents_in,
    expected_documents,
    opened,
    source_of,
    unpacked,
)


def test_every_epoch_holds_each_document_once(source: C4Stream, tokenizer: Tokenizer) -> None:
    wanted = expected_documents(tokenizer)
    per_epoch = sum(map(len, wanted))
    tokens, _ = batches(opened(source), 2 * per_epoch // (BATCH * LENGTH) + 1)
    found = documents_in(unpacked(tokens), tokenizer)
    first, second = found[: len(wanted)], found[len(wanted) : 2 * len(wanted)]
    assert sorted(first) == sorted(second) == sorted(wanted)
    assert first != second


def test_the_order_is_of_the_seed(source: C4Stream) -> None:
    data = opened(source)
    first, again, other = (batches(data, 30, BatchShard(BATCH, seed))[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_threads_and_read_ahead_change_nothing(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    for kind in KINDS:
        plain = batches(opened(source_of(folders[kind], tokenizer.path)), 60)
        several = source_of(folders[kind], tokenizer.path, tokenizer_threads=3)
        hurried = batches(opened(several, threads=4, ahead=2), 60)
        np.testing.assert_array_equal(plain[0], hurried[0])
        assert plain[1] == hurried[1]


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


def test_text_bytes_are_those_of_the_documents(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    data = opened(source_of(folders["json.gz"], tokenizer.path))
    tokens, _ = batches(data, 900, BatchShard(1))
    text_bytes = batches(data, 900, BatchShard(1), of="text_bytes")[0].ravel().tolist()
    found = documents_in(unpacked(tokens), tokenizer)
    sizes = {
        document: len(text.encode())
        for document, text in zip(expected_documents(tokenizer), TEXTS, strict=True)
    }
    whole = sum(sizes[document] for document in found)
    last = max(sizes.values())
    assert whole <= sum(text_bytes) <= whole + last


@pytest.mark.parametrize("count", [2, 4])
def test_processes_divide_an_epoch(source: C4Stream, tokenizer: Tokenizer, count: int) -> None:
    found: list[tuple[int, ...]] = []
    wanted = sorted(expected_documents(tokenizer))
    for index in range(count):
        data = opened(source)
        shard = BatchShard(BATCH * count, 0, index, count)
        stream, documents = data.train.stream(shard, None), data.train.documents_of(shard)
        mine = [c for c, _ in islice(documents.after(documents.start()), 400)]
        epoch = epoch_length(mine, len(TEXTS), index, count)
        tokens = unpacked(np.stack([b["tokens"] for b in islice(stream, 150)]))
        stream.close()
        found += documents_in(tokens, tokenizer)[:epoch]
    assert sorted(found) == wanted


def epoch_length(cursors: list[dict], total: int, index: int, count: int) -> int:
    """How many documents a share has in its first epoch."""
    if "epoch" in cursors[0]:
        return sum(cursor["epoch"] == 0 for cursor in cursors)
    return len(range(index, total, count))


def test_another_number_of_processes_is_refused(source: C4Stream) -> None:
    data = opened(source)
    shards = [BatchShard(BATCH * 2, 0, index, 2) for index in range(2)]
    states = [batches(data, 3, shard)[1][-1] for shard in shards]
    resumed = [batches(data, 2, shard, states)[0] for shard in shards]
    straight = [batches(data, 5, shard)[0][3:] for shard in shards]
    np.testing.assert_array_equal(resumed, straight)
    for count in (1, 4):
        with pytest.raises(UserError, match="of 2 processes.*resume it on 2.*@Rows"):
            data.train.stream(BatchShard(BATCH * 4, 0, 0, count), states)


def test_more_processes_than_files_are_refused(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    data = opened(source_of(folders["json.gz"], tokenizer.path))
    with pytest.raises(UserError, match="4 files cannot feed 5 processes"):
        data.train.stream(BatchShard(BATCH * 5, 0, 0, 5), None)


def test_the_validation_set_is_whole_documents_with_exact_bytes(
    folders: dict[str, Path], tokenizer: Tokenizer
) -> None:
    for kind in KINDS:
        split = opened(
            source_of(folders[kind], tokenizer.path, validation_documents=None)
        ).validation
        batch = split.rows.read(range(len(split.rows)))
        assert batch["text_bytes"].sum() == split.text_bytes
        assert split.text_bytes == sum(len(text.encode()) for text in TEXTS[:30])
        weights = np.count_nonzero(batch["tokens"][:, 1:] != tokenizer.bos)
        ids = [tokenizer.encode(text) for text in TEXTS[:30]]
        assert weights == sum(len(document) + 1 for document in ids)
        first = opened(source_of(folders[kind], tokenizer.path, validation_documents=3)).validation
        assert first.text_bytes < split.text_bytes and first.identity != split.identity
