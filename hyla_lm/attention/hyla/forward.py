"""y of a block pair on TPU, with the hidden units on lanes: the matrix units do every sum.

While it sums y over the last block pair, it computes the hidden layer z of this one. codes.py has
the operands; README.md draws them, and counts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.codes import (
    OCTET,
    OCTETS,
    HiddenLayers,
    column_query,
    set_queries,
    set_rows,
)
from hyla_lm.attention.hyla.grids import ForwardStep
from hyla_lm.attention.lanes import LANES, Problem, matrix_product, repeat, rows_at
from hyla_lm.attention.spec import ACTIVATIONS


class _Pair(NamedTuple):
    """The slot of a block pair's z and codes, and its query block in the span."""

    slot: Any
    query_block: Any


@dataclass(frozen=True)
class PairForward:
    """The steps of a block pair; every field but the first two is scratch memory.

    z has a slice a set, of rows of keys, columns (query, unit); `sums` rows (set, query, head) and
    the same columns. `last` is the pair before this one.
    """

    p: Problem
    layers: HiddenLayers
    last: Any
    sums: Any
    z: Any

    @staticmethod
    def scratch(p: Problem, span: int) -> dict[str, Any]:
        sets = p.value_dim
        return dict(
            last=pltpu.SMEM((2,), jnp.int32),
            sums=pltpu.VMEM((span, sets * set_rows(p), LANES), jnp.float32),
            z=pltpu.VMEM((2, sets, LANES, LANES), p.dtype),
        )

    def visit(self, step: ForwardStep, q_ref: Any, k_ref: Any, v_ref: Any, rest: list[Any]) -> None:
        """The codes and z of this pair, y of the last, and of this one too if it ends the span."""
        old = _Pair(self.last[0], self.last[1])
        new = _Pair(1 - old.slot, step.i)
        pl.when(step.starts_keys)(lambda: self.layers.write_keys(k_ref, v_ref))
        self.layers.write_codes(q_ref, rest, step.positions)

        pl.when(step.starts)(lambda: self.make_z(new))

        @pl.when(~step.starts)
        def _() -> None:
            self.sum_y(old)
            self.make_z(new)

        pl.when(step.ends)(lambda: self.sum_y(new))
        self.last[0], self.last[1] = new

    def make_z(self, pair: _Pair) -> None:
        """z of all keys and queries of the pair, and the codes that read it out."""
        self.layers.write_read(pair.slot)
        repeat(OCTETS // 2, partial(self._make_z_of_octets, pair))

    def _make_z_of_octets(self, pair: _Pair, index: Any) -> None:
        """z of 16 keys: z of a set is rounded to whole registers."""
        p, phi = self.p, ACTIVATIONS[self.p.activation]
        z = []
        for odd in range(2):
            self.layers.write_mix(2 * index + odd)
            x = self.layers.x(2 * index + odd, 0, p.value_dim)
            z.append(phi(x).reshape(p.value_dim, OCTET, LANES))
        both = jnp.concatenate(z, axis=1).astype(p.dtype)
        self.z[pair.slot, :, rows_at(index, 2 * OCTET)] = both

    def sum_y(self, pair: _Pair) -> None:
        """Adds the pair's y of each set, summed over its 128 keys."""
        repeat(self.p.value_dim, partial(self._sum_y_of_set, pair))

    def _sum_y_of_set(self, pair: _Pair, i: Any) -> None:
        y = matrix_product(self.layers.read_of_set(pair.slot, i), self.z[pair.slot, i])
        self.sums[pair.query_block, rows_at(i, set_rows(self.p))] += y

    def write_y(self, query_block: int, y_ref: Any) -> None:
        """y of a query block, HU x 128, from the sums of each query's own columns."""
        p, rows = self.p, set_rows(self.p)
        columns = pl.ds(query_block * LANES, LANES)
        for head in range(p.heads):
            own = []
            for n in range(set_queries(p)):
                first = n * rows // set_queries(p) + head
                sums = self.sums.at[query_block][pl.ds(first, p.value_dim, stride=rows)]
                own.append(jnp.where(column_query(p) == n, sums, 0.0))
            y = jnp.concatenate(own).T.reshape(-1, p.value_dim, LANES).sum(0)
            y_ref[0, p.head(head, p.value_dim), columns] = y.astype(y_ref.dtype)
