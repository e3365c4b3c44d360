"""Batches of rows through Grain: globally shuffled, reshuffled each epoch, exactly resumable."""

from collections.abc import Iterator
from typing import Any

import grain
import numpy as np
from grain.experimental import ElasticIterator

from hyla_lm.input.source import Split


class RowStream:
    """Endless shuffled batches of one process's share.

    The order depends on the seed alone, not on workers or hosts; the state is the number of rows
    that all processes have read.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        share: tuple[int, int] = (0, 1),
        state: dict[str, Any] | None = None,
        read_threads: int = 1,
    ):
        rows = grain.MapDataset.source(split.rows).seed(seed).shuffle().repeat(None)
        self._iterator = ElasticIterator(
            rows,
            batch_size,
            grain.sharding.ShardOptions(shard_index=share[0], shard_count=share[1]),
            read_options=grain.ReadOptions(num_threads=read_threads, prefetch_buffer_size=64),
        )
        if state is not None:
            self._iterator.set_state(state)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return self

    def __next__(self) -> dict[str, np.ndarray]:
        return next(self._iterator)

    def state(self) -> dict[str, Any]:
        return self._iterator.get_state()

    def close(self) -> None:
        self._iterator.close()


def rows_in_order(
    split: Split,
    batch_size: int,
    bos: int,
    share: tuple[int, int] = (0, 1),
    limit: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """One process's share of the split's first `limit` rows, in order, in whole batches.

    The last batch is filled with rows of BOS, whose targets weigh nothing; their row is -1.
    """
    total = len(split.rows) if limit is None else min(limit, len(split.rows))
    local = batch_size // share[1]
    filler: dict[str, Any] = {
        "tokens": np.full(split.manifest.sequence_length + 1, bos, np.int32),
        "text_bytes": np.int32(0),
        "row": np.int32(-1),
    }
    for start in range(0, total, batch_size):
        first = start + share[0] * local
        items = [split.rows[i] if i < total else filler for i in range(first, first + local)]
        yield {name: np.stack([item[name] for item in items]) for name in filler}
