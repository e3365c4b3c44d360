"""The order of rows: complete epochs, a seed, shards of one global batch, and exact resumption."""

import hashlib
from itertools import islice
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.prepared import Rows
from hyla_lm.input.row_stream import RowStream, evaluation_rows
from hyla_lm.input.rows import RowSet
from hyla_lm.input.source import Reading, open_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.tasks.language_model import unpack

LENGTH, BATCH, EPOCHS = 16, 8, 3
PLAIN = Reading()
State = dict[str, Any] | None


@pytest.fixture(scope="module")
def train_split(tiny_rows: Rows, tokenizer: Tokenizer) -> RowSet:
    return open_rows(tiny_rows.train, tokenizer, LENGTH, BATCH)


@pytest.fixture(scope="module")
def validation_split(tiny_rows: Rows, tokenizer: Tokenizer) -> RowSet:
    return open_rows(tiny_rows.validation, tokenizer, LENGTH, 1)


def take(stream: RowStream, batches: int) -> np.ndarray:
    """The row numbers of the next batches, shape batches x rows."""
    return np.stack([batch["row"] for batch in islice(stream, batches)])


def hashes(
    split: RowSet, shards: int, batches: int, state: State = None, reading: Reading = PLAIN
) -> list[str]:
    """A hash of every array of each global batch, put together from all shards."""
    states = [state] * shards if state else None
    streams = [
        RowStream(split, BatchShard(BATCH, 0, i, shards), states, reading) for i in range(shards)
    ]
    digests = []
    for _ in range(batches):
        parts = [next(stream) for stream in streams]
        digest = hashlib.sha256()
        for name in sorted(parts[0]):
            digest.update(np.concatenate([part[name] for part in parts]).tobytes())
        digests.append(digest.hexdigest())
    for stream in streams:
        stream.close()
    return digests


@pytest.fixture(scope="module")
def expected_hashes(train_split: RowSet) -> list[str]:
    return hashes(train_split, 1, EPOCHS * len(train_split.rows) // BATCH)


def test_every_epoch_has_each_row_once_in_an_order_of_its_own(train_split: RowSet) -> None:
    count = len(train_split.rows)
    rows = take(RowStream(train_split, BatchShard(BATCH, 0)), -(-2 * count // BATCH)).ravel()
    first, second = rows[:count], rows[count : 2 * count]
    assert sorted(first) == sorted(second) == list(range(count))
    # Two independent orders of 535 rows agree in one place on average.
    assert np.count_nonzero(first == second) < 10
    assert np.count_nonzero(first == np.arange(count)) < 10


@pytest.mark.parametrize(("shards", "reading"), [(8, PLAIN), (1, Reading(threads=4, ahead=2))])
def test_shards_make_up_the_global_batches(
    train_split: RowSet, expected_hashes: list[str], shards: int, reading: Reading
) -> None:
    count = len(expected_hashes)
    assert hashes(train_split, shards, count, None, reading) == expected_hashes


@pytest.mark.parametrize(("read", "saved_by", "shards"), [(0, 1, 2), (67, 1, 4), (100, 4, 2)])
def test_a_saved_state_continues_exactly(
    train_split: RowSet, expected_hashes: list[str], read: int, saved_by: int, shards: int
) -> None:
    stream = RowStream(train_split, BatchShard(BATCH, 0, saved_by - 1, saved_by))
    take(stream, read + 1)
    state = {"rows_read": read * BATCH}
    assert stream.get_state() == {"rows_read": (read + 1) * BATCH}
    assert hashes(train_split, shards, 5, state) == expected_hashes[read : read + 5]


def test_processes_that_saved_different_states_are_refused(train_split: RowSet) -> None:
    with pytest.raises(UserError, match="different rows"):
        RowStream(train_split, BatchShard(BATCH), [{"rows_read": 8}, {"rows_read": 16}])


@pytest.mark.parametrize("limit", [None, 13])
def test_rows_in_order_are_each_read_once(validation_split: RowSet, limit: int | None) -> None:
    total, shards = limit or len(validation_split.rows), 4
    batches = (
        evaluation_rows(validation_split, BatchShard(BATCH, 0, i, shards), 1, limit)
        for i in range(shards)
    )
    parts = [[batch["row"] for batch in part] for part in batches]
    assert {len(row) for part in parts for row in part} == {BATCH // shards}
    rows = np.concatenate(parts, axis=-1).ravel()
    assert rows[:total].tolist() == list(range(total))
    assert (rows[total:] == -1).all() and len(rows) == -(-total // BATCH) * BATCH


def test_what_fills_the_last_batch_weighs_nothing(
    tiny_rows: Rows, validation_split: RowSet, tokenizer: Tokenizer
) -> None:
    batches = list(evaluation_rows(validation_split, BatchShard(BATCH), tokenizer.bos))
    fills = np.concatenate([batch["row"] for batch in batches]) == -1
    tokens = np.concatenate([batch["tokens"] for batch in batches])
    text_bytes = np.concatenate([batch["text_bytes"] for batch in batches])
    weights = np.asarray(unpack(jnp.asarray(tokens), tokenizer.bos)[2])
    manifest = read_manifest(tiny_rows.validation)
    assert fills.any() and not weights[fills].any() and not text_bytes[fills].any()
    assert (weights.sum(), text_bytes.sum()) == (manifest.tokens, manifest.text_bytes)


def test_unpacked_rows_know_where_documents_start() -> None:
    bos, eos = 1, 2
    rows = jnp.array(
        [
            [bos, 7, eos, bos, 8, 9, eos],
            [5, 6, eos, bos, 4, eos, bos],
            [bos, bos, 3, eos, bos, bos, bos],
        ]
    )
    inputs, targets, weights, segments = map(np.asarray, unpack(rows, bos))
    assert inputs.tolist() == rows[:, :-1].tolist()
    assert targets.tolist() == rows[:, 1:].tolist()
    assert weights.tolist() == [[1, 1, 0, 1, 1, 1], [1, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 0]]
    assert segments.tolist() == [[1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1], [1, 2, 2, 2, 3, 4]]
    assert weights.dtype == np.float32
