"""Which part of each global batch a process reads."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Part `index` of `count`: the rows at places `rows` of each batch.

    Without `rows` the parts are contiguous. Processes that hold the same rows, each a part of the
    model, have the same share.
    """

    index: int = 0
    count: int = 1
    rows: tuple[int, ...] | None = None

    def places(self, batch_size: int) -> Sequence[int]:
        """The places of this share's rows in a batch."""
        if self.rows is not None:
            return self.rows
        part = batch_size // self.count
        return range(self.index * part, (self.index + 1) * part)
