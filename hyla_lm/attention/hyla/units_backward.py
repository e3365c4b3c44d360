"""The gradient of a block pair with units on lanes: the matrix units do every sum.

First by sets of queries: x and dz, and of them the part of da through the readout of y; dx is moved
to the order of keys. Then by pairs of keys: dv, and the part of da through x. units_forward.py
has the operands, README.md the layout and the count.
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
    ScoresGradient,
    codes_of_keys,
    write_keys,
)
from hyla_lm.attention.hyla.units_forward import (
    CODE_KEYS,
    SET_QUERIES,
    SET_ROWS,
    SETS,
    codes_of_octet,
    column_query,
    mix_of_octet,
    network_of_octet,
    rows_of_mix,
    twice,
)
from hyla_lm.attention.lanes import LANES, Problem, lane, matrix_product, repeat, rows_at
from hyla_lm.attention.spec import ACTIVATIONS

TILE_SETS = 16
DS_KEYS = 32


@dataclass(frozen=True)
class UnitsGradient:
    """The steps of a block pair; fields from `v` on are scratch memory.

    `v`, `dy` and `code` have 8 positions in a slice, rows (head, position): v and dy in columns
    (query, unit), dy only in its own query's, the code in columns of queries. `read` has the codes
    that read out, of 8 sets in a slice: rows of keys, columns (head, set, query), as words.
    """

    p: Problem
    scores: ScoresGradient
    v: Any
    dy: Any
    code: Any
    v_network: Any
    dy_network: Any
    by_octet: Any
    by_head: Any
    mix: Any
    read: Any
    x: list[Any]
    dx: Any
    da_by_set: Any
    da_read: Any
    da_made: Any
    dv: Any

    @staticmethod
    def scratch(p: Problem) -> dict[str, Any]:
        by_octet = pltpu.VMEM((OCTETS, p.heads * OCTET, LANES), jnp.float32)
        words = pltpu.VMEM((p.heads, LANES // 2, LANES), jnp.int32)
        da = pltpu.VMEM((LANES * p.heads, LANES), jnp.float32)
        return dict(
            v=by_octet,
            dy=by_octet,
            code=by_octet,
            v_network=pltpu.VMEM((OCTETS, LANES, LANES), p.dtype),
            dy_network=pltpu.VMEM((OCTET, LANES, LANES), p.dtype),
            by_octet=pltpu.VMEM((OCTETS, LANES // 2, LANES), jnp.int32),
            by_head=words,
            mix=pltpu.VMEM((OCTETS, SETS, LANES), jnp.int32),
            read=words,
            x=[pltpu.VMEM((TILE_SETS, LANES, LANES), jnp.float32)] * 2,
            dx=pltpu.VMEM((OCTET, OCTET, OCTET * OCTET, LANES), jnp.int32),
            da_by_set=da,
            da_read=pltpu.VMEM((p.heads, LANES, LANES), jnp.float32),
            da_made=da,
            dv=pltpu.VMEM((LANES * SET_ROWS, LANES), jnp.float32),
        )

    def prepare(
        self, starts_keys: Any, v_ref: Any, segment_refs: list[Any], positions: tuple[Any, Any]
    ) -> None:
        """The codes of the pair, and before the first of a block of keys what depends on it."""

        @pl.when(starts_keys)
        def _() -> None:
            write_keys(self.p, self.scores.k_ref, self.scores.keys)
            self._write_by_octet(v_ref, self.v)
            repeat(OCTETS, self._write_network)

        self._write_codes(segment_refs, positions)
        repeat(OCTETS, self._write_mix)
        self._write_read()

    def differentiate(self, query_block: Any, dy_ref: Any) -> None:
        """Adds the pair's part to dq, dk and the sums that dv is read from."""
        p = self.p
        self._write_dy(dy_ref)
        repeat(OCTETS, partial(self._make_x, 0))
        for tile in range(SETS // TILE_SETS):
            repeat(TILE_SETS, partial(self._make_dx_and_next_x, tile))
        for head in range(p.heads):
            self.da_read[head] = self.da_by_set[pl.ds(head, LANES, stride=p.heads)].T
        for first in range(0, LANES, DS_KEYS):
            repeat(DS_KEYS // 2, partial(self._sum_by_keys, first // 2))
            self._make_ds(query_block, first)
        self.scores.add(query_block)

    def write_dv(self, dv_ref: Any) -> None:
        """dv of a block of keys, from each query's own columns; sets the sums to zero."""
        p = self.p
        for head in range(p.heads):
            first, second = (
                self.dv[pl.ds(n * p.heads + head, LANES, stride=SET_ROWS)]
                for n in range(SET_QUERIES)
            )
            own = jnp.where(column_query() == 0, first, second).T
            dv = own[: p.value_dim] + own[p.value_dim :]
            dv_ref[0, p.head(head, p.value_dim)] = dv.astype(dv_ref.dtype)
        self.dv[...] = jnp.zeros_like(self.dv)

    def _write_codes(self, segment_refs: list[Any], positions: tuple[Any, Any]) -> None:
        """The codes with queries on lanes: by octet those that mix, by head those that read out."""
        p, scores = self.p, self.scores
        for start in range(0, LANES, CODE_KEYS):
            keys = slice(start, start + CODE_KEYS)
            operands = p, scores.q_ref, scores.keys, segment_refs, positions, keys
            made, read, scores.scale[keys] = codes_of_keys(*operands)
            for head, a in enumerate(read):
                words = pltpu.bitcast(a.astype(p.dtype), jnp.int32)
                self.by_head[head, pl.ds(start // 2, CODE_KEYS // 2)] = words
            for octet in range(CODE_KEYS // OCTET):
                codes = jnp.concatenate([a[p.head(octet, OCTET)] for a in made])
                self.code[start // OCTET + octet] = codes
                self.by_octet[start // OCTET + octet] = codes_of_octet(p, codes)

    def _write_by_octet(self, source_ref: Any, ref: Any, own: jax.Array | None = None) -> None:
        p = self.p
        for head in range(p.heads):
            x = twice(source_ref[0, p.head(head, p.value_dim)])
            x = x if own is None else jnp.where(own, x, 0.0)
            ref[:, p.head(head, OCTET)] = x.reshape(OCTETS, OCTET, LANES)

    def _write_dy(self, dy_ref: Any) -> None:
        """dy, and as the operands that make dz of 8 sets: rows (head, set, query)."""
        p = self.p
        row_query = lax.rem(lax.broadcasted_iota(jnp.int32, (LANES, 1), 0), SET_QUERIES)
        self._write_by_octet(dy_ref, self.dy, row_query == column_query())
        for head in range(p.heads):
            dy = self.dy[:, p.head(head, OCTET)].reshape(OCTET, SET_ROWS, LANES)
            self.dy_network[:, p.head(head, SET_ROWS)] = dy.astype(p.dtype)

    def _write_network(self, octet: Any) -> None:
        self.v_network[octet] = network_of_octet(self.p, self.v[octet])

    def _write_mix(self, octet: Any) -> None:
        self.mix[octet] = mix_of_octet(self.p, self.by_octet[octet])

    def _write_read(self) -> None:
        """Sorts 8 x 8 blocks of 16 queries: a head's blocks of queries become a block's heads."""
        p, rows_at_once = self.p, SET_ROWS
        block = lax.div(lane(), SET_ROWS)
        for start in range(0, LANES // 2, rows_at_once):
            rows = pl.ds(start, rows_at_once)
            codes = [self.by_head[head, rows] for head in range(p.heads)]
            for bit in (1, 2, 4):
                stays = block & bit == 0
                for low in (i for i in range(p.heads) if not i & bit):
                    a, b = codes[low], codes[low | bit]
                    moved = pltpu.roll(a, LANES - bit * SET_ROWS, 1)
                    codes[low] = jnp.where(stays, a, pltpu.roll(b, bit * SET_ROWS, 1))
                    codes[low | bit] = jnp.where(stays, moved, b)
            for i, words in enumerate(codes):
                self.read[i, rows] = words

    def _make_dx_and_next_x(self, tile: int, index: Any) -> None:
        """dx of a set, and x of 8 keys and the sets of the next tile: a tile has 16 of both."""
        if (tile + 1) * TILE_SETS < SETS:
            self._make_x(tile + 1, index)
        self._make_dx(tile, index)

    def _make_x(self, tile: int, octet: Any) -> None:
        """x of 8 keys and a tile of sets."""
        codes = rows_of_mix(self.p, self.mix.at[octet], tile * TILE_SETS, TILE_SETS)
        x = matrix_product(codes, self.v_network[octet])
        keys = rows_at(octet, OCTET)
        self.x[tile % 2][:, keys] = x.reshape(TILE_SETS, OCTET, LANES)

    def _make_dx(self, tile: int, index: Any) -> None:
        """dx = phi'(x) * sum over heads of code times dy; da = sum over units of z times dy."""
        p = self.p
        i = tile * TILE_SETS + index
        group, member = lax.div(i, OCTET), lax.rem(i, OCTET)
        column_set = lax.rem(lax.div(lane(), SET_QUERIES), OCTET)
        codes = jnp.where(column_set == member, self.read[group], 0)
        dz = matrix_product(pltpu.bitcast(codes, p.dtype), self.dy_network[group])
        z, pull_back = jax.vjp(ACTIVATIONS[p.activation], self.x[tile % 2][index])
        (dx,) = pull_back(dz)
        dy = [self._heads(self.dy, SET_QUERIES * i + n) for n in range(SET_QUERIES)]
        dy_HxPU = jnp.concatenate(dy).astype(p.dtype)
        da = matrix_product(dy_HxPU, z.astype(p.dtype), (1, 1))
        self.da_by_set[rows_at(i, SET_ROWS)] = da
        words = pltpu.bitcast(dx.astype(p.dtype), jnp.int32)
        self.dx[group, :, rows_at(member, OCTET)] = words.reshape(OCTET, OCTET, LANES)

    def _sum_by_keys(self, first: int, index: Any) -> None:
        """The sums of dx of pair `first + index` of keys: its rows are (set, key of two)."""
        pair = first + index
        block, row = lax.div(pair, OCTET), lax.rem(pair, OCTET)
        words = self.dx[:, block, pl.ds(row, OCTET, stride=OCTET)]
        dx = pltpu.bitcast(words.reshape(SETS, LANES), self.p.dtype)
        self._add_dv(pair, dx)
        self._make_da(pair, dx)

    def _add_dv(self, pair: Any, dx: jax.Array) -> None:
        """dv = sum over queries of code times dx, of rows (key, query, head)."""
        even, odd = (self._heads(self.code, 2 * pair + n) for n in range(2))
        codes = [jnp.where(_is_even(), a, 0.0) for a in (even, _to_even(even))]
        codes += [jnp.where(_is_even(), 0.0, a) for a in (_to_odd(odd), odd)]
        operand = jnp.concatenate(codes).astype(self.p.dtype)
        self.dv[rows_at(pair, 2 * SET_ROWS)] += matrix_product(operand, dx)

    def _make_da(self, pair: Any, dx: jax.Array) -> None:
        """da = sum over units of v times dx; from rows (key, query, head) to (key, head)."""
        p = self.p
        v = [
            jnp.where(column_query() == n, self._heads(self.v, 2 * pair + odd), 0.0)
            for odd in range(2)
            for n in range(SET_QUERIES)
        ]
        da = matrix_product(jnp.concatenate(v).astype(p.dtype), dx, (1, 1))
        even_0, even_1, odd_0, odd_1 = (da[p.head(n, p.heads)] for n in range(4))
        even = jnp.where(_is_even(), even_0, _to_odd(even_1))
        odd = jnp.where(_is_even(), _to_even(odd_0), odd_1)
        self.da_made[rows_at(pair, 2 * p.heads)] = jnp.concatenate([even, odd])

    def _make_ds(self, query_block: Any, first: int) -> None:
        p, keys = self.p, slice(first, first + DS_KEYS)
        octets = slice(first // OCTET, (first + DS_KEYS) // OCTET)
        codes, da_made, da_read = [], [], []
        for head in range(p.heads):
            codes.append(self.code[octets, p.head(head, OCTET)].reshape(DS_KEYS, LANES))
            da_made.append(self.da_made[pl.ds(first * p.heads + head, DS_KEYS, stride=p.heads)])
            da_read.append(self.da_read[head, keys])
        self.scores.make_ds(query_block, keys, codes, da_made, da_read)

    def _heads(self, ref: Any, position: Any) -> jax.Array:
        """A position's rows of all heads."""
        octet, row = lax.div(position, OCTET), lax.rem(position, OCTET)
        return ref[octet, pl.ds(row, self.p.heads, stride=OCTET)]


def _is_even() -> jax.Array:
    return lax.rem(lane(), 2) == 0


def _to_even(x: jax.Array) -> jax.Array:
    """Moves odd columns to the even ones before them."""
    return pltpu.roll(x, LANES - 1, 1)


def _to_odd(x: jax.Array) -> jax.Array:
    """Moves even columns to the odd ones after them."""
    return pltpu.roll(x, 1, 1)
