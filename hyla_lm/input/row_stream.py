"""Batches of rows through Grain: globally shuffled, reshuffled each epoch, exactly resumable."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np
from grain.experimental import index_shuffle

from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Verification
from hyla_lm.input.rows import RowBatch, RowSet, RowTable
from hyla_lm.input.source import Reading
from hyla_lm.parallel.sharding import BatchShard

ROUNDS = 4
# An endless order of rows: the number of the row at a place, by the place and a seed.
Order = Callable[[int, int], int]


@dataclass(frozen=True)
class Shuffled:
    """Every epoch of `count` places holds each of `count` rows once, in its own order."""

    count: int

    def __call__(self, place: int, seed: int) -> int:
        epoch, index = divmod(place, self.count)
        epoch_seed = zlib.crc32(f"{seed} {epoch}".encode())
        return index_shuffle(index, self.count - 1, epoch_seed, ROUNDS)


@dataclass(frozen=True)
class ShuffledBatches:
    """Batch i of one process: its shard of the i-th global batch after row `first`.

    The order of rows depends only on the seed.
    """

    rows: RowTable
    order: Order
    shard: BatchShard
    first: int

    def __len__(self) -> int:
        return 2**62 // self.shard.batch_size

    def __getitem__(self, index: int) -> RowBatch:
        start, seed = self.first + index * self.shard.batch_size, self.shard.seed
        return self.rows.read([self.order(start + place, seed) for place in self.shard.places])


class RowStream:
    """Endless shuffled batches of one process's shard.

    The state is the number of rows that all processes have read, so a run resumes with the same
    global batches on any number of processes and threads; `states` are those that the processes
    saved. Without an `order`, every epoch holds each row once, in its own order. A
    `verification` that finds a shard that is another ends the stream with its error.
    """

    def __init__(
        self,
        row_set: RowSet,
        shard: BatchShard,
        states: list[dict[str, Any]] | None = None,
        reading: Reading | None = None,
        order: Order | None = None,
        verification: Verification | None = None,
    ):
        self._rows_read = int(check_equal_states(states)["rows_read"]) if states else 0
        self._batch_size, self._verification = shard.batch_size, verification
        chosen = order or Shuffled(len(row_set.rows))
        source = ShuffledBatches(row_set.rows, chosen, shard, self._rows_read)
        reading = reading or Reading()
        options = grain.ReadOptions(reading.threads, max(reading.ahead, reading.threads))
        self._iterator = iter(grain.MapDataset.source(source).to_iter_dataset(options))

    def __iter__(self) -> Iterator[RowBatch]:
        return self

    def __next__(self) -> RowBatch:
        if self._verification is not None:
            self._verification.check()
        batch = next(self._iterator)
        self._rows_read += self._batch_size
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"rows_read": self._rows_read}

    def close(self) -> None:
        self._iterator.close()
        if self._verification is not None:
            self._verification.close()


def check_equal_states(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The state that all processes saved alike; raises UserError if they differ."""
    if any(state != states[0] for state in states):
        raise UserError(f"the checkpoint's processes had read different rows ({states}).")
    return states[0]


def evaluation_rows(
    row_set: RowSet, shard: BatchShard, bos: int, limit: int | None = None
) -> Iterator[RowBatch]:
    """One process's shard of the first `limit` rows, in order, in whole batches.

    The last batch is filled with rows of BOS, whose targets have no weight; their row is -1.
    """
    total = len(row_set.rows) if limit is None else min(limit, len(row_set.rows))
    places = shard.places
    for start in range(0, total, shard.batch_size):
        batch = row_set.rows.read([start + place for place in places if start + place < total])
        missing = len(places) - len(batch["row"])
        yield {
            name: np.pad(
                values,
                [(0, missing)] + [(0, 0)] * (values.ndim - 1),
                constant_values={"tokens": bos, "text_bytes": 0, "row": -1}[name],
            )
            for name, values in batch.items()
        }
