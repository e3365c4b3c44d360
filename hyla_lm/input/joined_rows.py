"""Rows of several sources as one table, numbered on from source to source."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.source import RowTable
from hyla_lm.input.turns import Turns

LARGEST_TABLE = 2**31 - 1


class JoinedRows:
    """One table after the other. Row r of a table is row r + the rows of all tables before it."""

    def __init__(self, tables: Sequence[RowTable]):
        self._tables = tuple(tables)
        *self.starts, self._count = accumulate(map(len, self._tables), initial=0)
        if self._count > LARGEST_TABLE:
            raise UserError(
                f"the sources of a mixture hold {self._count:,} rows, more than the "
                f"{LARGEST_TABLE:,} that can be numbered: leave one out, or prepare longer rows."
            )

    def __len__(self) -> int:
        return self._count

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Rows as arrays: tokens (n x T+1), text_bytes (n) and row (n), all int32."""
        row_N = np.array(rows, np.int64)
        table_N = np.searchsorted(self.starts, row_N, side="right") - 1
        found = []
        for number, (table, start) in enumerate(zip(self._tables, self.starts, strict=True)):
            part = table.read((row_N[table_N == number] - start).tolist())
            found.append({**part, "row": part["row"] + np.int32(start)})
        as_asked = np.argsort(np.argsort(table_N, kind="stable"))
        return {name: np.concatenate([part[name] for part in found])[as_asked] for name in found[0]}


class SpreadRows:
    """Every row of several tables once, in an order whose every prefix has a fair part of each.

    Rows of a table keep their order, and are numbered as in JoinedRows.
    """

    def __init__(self, tables: Sequence[RowTable]):
        self._rows, self._turns = JoinedRows(tables), Turns(tuple(map(len, tables)))

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """The rows at these places of the order."""
        turns = map(self._turns.at, rows)
        return self._rows.read([self._rows.starts[table] + turn for table, turn in turns])
