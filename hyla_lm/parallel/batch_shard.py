"""Which part of each global batch a process reads."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchShard:
    """Part `index` of `count` of each global batch of `batch_size` rows, in the order of `seed`.

    `rows` are the positions of its rows in the batch; without them the parts are contiguous.
    Processes that hold different parts of the model and the same rows have the same shard.
    """

    batch_size: int
    seed: int = 0
    index: int = 0
    count: int = 1
    rows: tuple[int, ...] | None = None

    @property
    def places(self) -> Sequence[int]:
        """The places of this shard's rows in a batch."""
        if self.rows is not None:
            return self.rows
        size = self.batch_size // self.count
        return range(self.index * size, (self.index + 1) * size)
