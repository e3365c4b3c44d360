"""The gradient of a block pair on TPU, with the hidden units on lanes.

First by sets of queries: x and dz, and of them the part of da through the readout of y; dx is moved
to the order of keys. Then by keys: dv, and the part of da through x. codes.py has the operands,
README.md the layout and the count.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.codes import (
    OCTET,
    OCTETS,
    HiddenLayers,
    ScoresGradient,
    column_query,
    columns_of_set,
    padded_heads,
    query_rows,
    rows_of_set,
    set_queries,
    set_rows,
)
from hyla_lm.attention.lanes import LANES, Problem, matrix_product, repeat, rows_at
from hyla_lm.attention.spec import ACTIVATIONS

TILE_SETS = 16
DS_KEYS = 32


@dataclass(frozen=True)
class PairGradient:
    """The steps of a block pair; fields from `dy` on are scratch memory.

    `dy` and `da_by_set` have rows (query, head), dy in its own query's columns (query, unit), da in
    columns of keys. `da_made` has rows (key, head). x has a slice a set of a tile; dx has blocks of
    8 sets and 8 keys: rows (set, key).
    """

    p: Problem
    layers: HiddenLayers
    scores: ScoresGradient
    dy: Any
    x: list[Any]
    dx: Any
    da_by_set: Any
    da_read: Any
    da_made: Any
    dv: Any

    @staticmethod
    def scratch(p: Problem) -> dict[str, Any]:
        by_position = pltpu.VMEM((LANES * padded_heads(p), LANES), jnp.float32)
        return dict(
            dy=by_position,
            x=[pltpu.VMEM((TILE_SETS, LANES, LANES), jnp.float32)] * 2,
            dx=pltpu.VMEM((p.value_dim // OCTET, OCTETS, OCTET * OCTET, LANES), jnp.float32),
            da_by_set=by_position,
            da_read=pltpu.VMEM((p.heads, LANES, LANES), jnp.float32),
            da_made=by_position,
            dv=pltpu.VMEM((LANES * set_rows(p), LANES), jnp.float32),
        )

    def differentiate(self, query_block: Any, dy_ref: Any) -> None:
        """Adds the pair's part to dq, dk and the sums that dv is read from."""
        repeat(OCTETS, self._make_first_x)
        self.layers.write_read(0)
        self._write_dy(dy_ref)
        for tile in range(self.p.value_dim // TILE_SETS):
            repeat(TILE_SETS, partial(self._make_dx_and_next_x, tile))
        heads = padded_heads(self.p)
        for head in range(self.p.heads):
            self.da_read[head] = self.da_by_set[pl.ds(head, LANES, stride=heads)].T
        for first in range(0, LANES, DS_KEYS):
            repeat(DS_KEYS, partial(self._sum_by_key, first))
            self._make_ds(query_block, first)
        self.scores.add(query_block)

    def write_dv(self, dv_ref: Any) -> None:
        """dv of a block of keys, from each query's own columns; sets the sums to zero."""
        p, heads = self.p, padded_heads(self.p)
        for head in range(p.heads):
            dv = jnp.zeros((LANES, LANES), jnp.float32)
            for n in range(set_queries(p)):
                sums = self.dv[pl.ds(n * heads + head, LANES, stride=set_rows(p))]
                dv = jnp.where(column_query(p) == n, sums, dv)
            dv = dv.T.reshape(set_queries(p), p.value_dim, LANES).sum(0)
            dv_ref[0, p.head(head, p.value_dim)] = dv.astype(dv_ref.dtype)
        self.dv[...] = jnp.zeros_like(self.dv)

    def _write_dy(self, dy_ref: Any) -> None:
        p, heads = self.p, padded_heads(self.p)
        row_query = lax.div(lax.broadcasted_iota(jnp.int32, (LANES, 1), 0), p.value_dim)
        for head in range(heads):
            own = jnp.where(row_query == column_query(p), columns_of_set(p, dy_ref, head), 0.0)
            self.dy[pl.ds(head, LANES, stride=heads)] = own

    def _make_dx_and_next_x(self, tile: int, index: Any) -> None:
        """dx of a set, and x of 8 keys and the sets of the next tile: a tile has 16 of both."""
        if (tile + 1) * TILE_SETS < self.p.value_dim:
            self._make_x(tile + 1, index)
        self._make_dx(tile, index)

    def _make_first_x(self, octet: Any) -> None:
        self.layers.write_mix(octet)
        self._make_x(0, octet)

    def _make_x(self, tile: int, octet: Any) -> None:
        """x of 8 keys and a tile of sets."""
        x = self.layers.x(octet, tile * TILE_SETS, TILE_SETS)
        self.x[tile % 2][:, rows_at(octet, OCTET)] = x.reshape(TILE_SETS, OCTET, LANES)

    def _make_dx(self, tile: int, index: Any) -> None:
        """dx = phi'(x) * sum over heads of code times dy; da = sum over units of z times dy."""
        p = self.p
        i = tile * TILE_SETS + index
        dy = rows_of_set(p, self.dy, i).astype(p.dtype)
        dz = matrix_product(self.layers.read_of_set(0, i), dy, (0, 0))
        z, pull_back = jax.vjp(ACTIVATIONS[p.activation], self.x[tile % 2][index])
        (dx,) = pull_back(dz)
        da = matrix_product(dy, z.astype(p.dtype), (1, 1))
        for n, rows in enumerate(query_rows(p, i)):
            self.da_by_set[rows] = da[p.head(n, padded_heads(p))]
        group, member = lax.div(i, OCTET), lax.rem(i, OCTET)
        self.dx[group, :, rows_at(member, OCTET)] = dx.reshape(OCTETS, OCTET, LANES)

    def _sum_by_key(self, first: int, index: Any) -> None:
        """dv = sum over queries of code times dx; da = sum over units of v times dx."""
        p, heads = self.p, padded_heads(self.p)
        key = first + index
        octet, row = lax.div(key, OCTET), lax.rem(key, OCTET)
        dx = self.dx[:, octet, pl.ds(row, OCTET, stride=OCTET)]
        dx = dx.reshape(p.value_dim, LANES).astype(p.dtype)
        made = self.layers.made[octet, pl.ds(row, heads, stride=OCTET)]
        queries = [made[:, p.head(n, p.value_dim)] for n in range(set_queries(p))]
        codes = jnp.concatenate(queries).astype(p.dtype)
        self.dv[rows_at(key, set_rows(p))] += matrix_product(codes, dx)
        v = self.layers.network[octet, pl.ds(row, set_rows(p), stride=OCTET)]
        da = matrix_product(v.astype(p.dtype), dx, (1, 1))
        queries = [da[p.head(n, heads)] for n in range(set_queries(p))]
        self.da_made[rows_at(key, heads)] = jnp.concatenate(queries, axis=1)

    def _make_ds(self, query_block: Any, first: int) -> None:
        p, heads = self.p, padded_heads(self.p)
        keys = slice(first, first + DS_KEYS)
        octets = slice(first // OCTET, (first + DS_KEYS) // OCTET)
        codes, da_made, da_read = [], [], []
        for head in range(p.heads):
            codes.append(self.layers.made[octets, p.head(head, OCTET)].reshape(DS_KEYS, LANES))
            da_made.append(self.da_made[pl.ds(first * heads + head, DS_KEYS, stride=heads)])
            da_read.append(self.da_read[head, keys])
        self.scores.make_ds(query_block, keys, codes, da_made, da_read)
