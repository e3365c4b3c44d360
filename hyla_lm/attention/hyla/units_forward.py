"""HYLA forward on TPU with the hidden units on lanes: the matrix units sum y too.

While it sums y over the last block pair, it computes the hidden layer z of this one.

Query 2 i + n is number n of set i. A set's codes for 8 keys, its `mix`, fill the depth of a matrix
unit: (query, head, key). Its hidden layers fill the columns: (query, unit). README.md draws both,
and counts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.codes import OCTET, OCTETS, codes_of_keys, write_keys
from hyla_lm.attention.hyla.grids import ForwardStep
from hyla_lm.attention.lanes import LANES, Problem, lane, matrix_product, repeat, rows_at
from hyla_lm.attention.spec import ACTIVATIONS

SET_QUERIES = 2
SETS = LANES // SET_QUERIES
SET_ROWS = SET_QUERIES * OCTET  # (query, head): the rows of bfloat16 in a vector register
CODE_KEYS = 64


def fits(p: Problem) -> bool:
    """Whether the kernels with units on lanes compute the problem: the shape that is counted."""
    return p.dtype == jnp.bfloat16 and (p.heads, p.value_dim) == (OCTET, SETS)


class _Pair(NamedTuple):
    """The slot of a block pair's z and codes, and its query block in the span."""

    slot: Any
    query_block: Any


@dataclass(frozen=True)
class UnitsForward:
    """The steps of a block pair; every field but the first is scratch memory.

    `mix` has the codes that mix v to z: a row a set, columns (query, head, key of 8). `read` has
    those that read z out: rows (set, query, head), columns of keys. z has rows (set, key), columns
    (query, unit). `last` is the pair before this one.
    """

    p: Problem
    by_head: Any
    by_octet: Any
    keys: Any
    last: Any
    mix: Any
    network: Any
    read: Any
    sums: Any
    z: Any

    @staticmethod
    def scratch(p: Problem, span: int) -> tuple[Any, ...]:
        return (
            pltpu.VMEM((p.heads, LANES, LANES), p.dtype),
            pltpu.VMEM((OCTETS, LANES // 2, LANES), jnp.int32),
            pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
            pltpu.SMEM((2,), jnp.int32),
            pltpu.VMEM((OCTETS, SETS, LANES), jnp.int32),
            pltpu.VMEM((OCTETS, LANES, LANES), p.dtype),
            pltpu.VMEM((2, SETS * SET_ROWS // 2, LANES), jnp.int32),
            pltpu.VMEM((span, SETS * SET_ROWS, LANES), jnp.float32),
            pltpu.VMEM((2, SETS, LANES // 2, LANES), jnp.int32),
        )

    def visit(
        self, step: ForwardStep, q_ref: Any, k_ref: Any, v_ref: Any, segment_refs: list[Any]
    ) -> None:
        """The codes and z of this pair, y of the last, and of this one too if it ends the span."""
        old = _Pair(self.last[0], self.last[1])
        new = _Pair(1 - old.slot, step.i)

        @pl.when(step.starts_keys)
        def _() -> None:
            write_keys(self.p, k_ref, self.keys)
            self.write_networks(v_ref)

        self.write_codes(q_ref, segment_refs, step.positions)
        self.turn_codes(new)

        pl.when(step.starts)(lambda: self.make_z(new))

        @pl.when(~step.starts)
        def _() -> None:
            self.sum_y(old)
            self.make_z(new)

        pl.when(step.ends)(lambda: self.sum_y(new))
        self.last[0], self.last[1] = new

    def write_networks(self, v_ref: Any) -> None:
        """v of 8 keys at a time: rows (query, head, key), columns (query, unit)."""
        p = self.p
        v = [twice(v_ref[0, p.head(head, p.value_dim)]) for head in range(p.heads)]
        for octet in range(OCTETS):
            rows = jnp.concatenate([x[p.head(octet, OCTET)] for x in v])
            self.network[octet] = network_of_octet(p, rows)

    def write_codes(self, q_ref: Any, segment_refs: list[Any], positions: tuple[Any, Any]) -> None:
        """The codes with queries on lanes: by octet those that mix, by head those that read out."""
        p = self.p
        for start in range(0, LANES, CODE_KEYS):
            keys = slice(start, start + CODE_KEYS)
            made, read, _ = codes_of_keys(p, q_ref, self.keys, segment_refs, positions, keys)
            for head, a in enumerate(read):
                self.by_head[head, keys] = a.astype(p.dtype)
            for octet in range(CODE_KEYS // OCTET):
                codes = jnp.concatenate([a[p.head(octet, OCTET)] for a in made])
                self.by_octet[start // OCTET + octet] = codes_of_octet(p, codes)

    def turn_codes(self, pair: _Pair) -> None:
        """Moves queries from lanes to rows, by products with ones and zeros, which are exact."""
        p = self.p

        def turn(octet: Any) -> None:
            self.mix[octet] = mix_of_octet(p, self.by_octet[octet])

        repeat(OCTETS, turn)
        row = lax.broadcasted_iota(jnp.int32, (LANES, LANES), 0)
        column = lax.broadcasted_iota(jnp.int32, (LANES, LANES), 1)
        same = (row == column).astype(p.dtype)
        for head in range(0, p.heads, 2):
            low, high = (
                pltpu.bitcast(matrix_product(same, self.by_head[head + odd], (1, 1)), jnp.int32)
                for odd in range(2)
            )
            rows = pl.ds(head // 2, LANES, stride=p.heads // 2)
            self.read[pair.slot, rows] = low_half(low) | high

    def make_z(self, pair: _Pair) -> None:
        """z of all keys and queries of the pair."""
        repeat(OCTETS // 2, partial(self._make_z_of_octets, pair))

    def _make_z_of_octets(self, pair: _Pair, index: Any) -> None:
        """z of 16 keys: z of a set is rounded to whole registers."""
        p = self.p
        phi = ACTIVATIONS[p.activation]
        z = []
        for odd in range(2):
            octet = 2 * index + odd
            codes = rows_of_mix(p, self.mix.at[octet], 0, SETS)
            z.append(phi(matrix_product(codes, self.network[octet])))
        rows = rows_at(index, OCTET)
        for i in range(SETS):
            both = jnp.concatenate([x[p.head(i, OCTET)] for x in z]).astype(p.dtype)
            self.z[pair.slot, i, rows] = pltpu.bitcast(both, jnp.int32)

    def sum_y(self, pair: _Pair) -> None:
        """Adds the pair's y of each set, summed over its 128 keys."""
        repeat(SETS, partial(self._sum_y_of_set, pair))

    def _sum_y_of_set(self, pair: _Pair, i: Any) -> None:
        p = self.p
        words = self.read[pair.slot, rows_at(i, OCTET)]
        z = pltpu.bitcast(self.z[pair.slot, i], p.dtype)
        y = matrix_product(pltpu.bitcast(words, p.dtype), z)
        self.sums[pair.query_block, rows_at(i, SET_ROWS)] += y

    def write_y(self, query_block: int, y_ref: Any) -> None:
        """y of a query block, HU x 128, from the sums of each query's own columns."""
        p = self.p
        row = lax.broadcasted_iota(jnp.int32, (SETS, LANES), 0)
        column = lax.broadcasted_iota(jnp.int32, (SETS, LANES), 1)
        for head in range(p.heads):
            y = jnp.zeros((p.value_dim, LANES), jnp.float32)
            for n in range(SET_QUERIES):
                rows = pl.ds(n * p.heads + head, SETS, stride=SET_ROWS)
                own = self.sums.at[query_block][rows][:, p.head(n, p.value_dim)]
                place = (row * SET_QUERIES + n == column).astype(p.dtype)
                y += matrix_product(own.astype(p.dtype).T, place)
            columns = pl.ds(query_block * LANES, LANES)
            y_ref[0, p.head(head, p.value_dim), columns] = y.astype(y_ref.dtype)


def twice(x_UxT: jax.Array) -> jax.Array:
    """The units of 128 positions once for each query of a set: 128 x (query, unit), float32."""
    return jnp.concatenate([x_UxT] * SET_QUERIES).T.astype(jnp.float32)


def column_query() -> jax.Array:
    """The query of a set of each column (query, unit)."""
    return lax.div(lane(), SETS)


def network_of_octet(p: Problem, v_HSxPU: jax.Array) -> jax.Array:
    """The value networks of 8 keys: rows (query, head, key), each in its own query's columns."""
    own = [jnp.where(column_query() == n, v_HSxPU, 0.0) for n in range(SET_QUERIES)]
    return jnp.concatenate(own).astype(p.dtype)


def codes_of_octet(p: Problem, a_HSxT: jax.Array) -> jax.Array:
    """The codes of 8 keys as words: rows (query, head, key), each in its own queries' columns."""
    words = pltpu.bitcast(a_HSxT.astype(p.dtype), jnp.int32)
    query = lax.rem(lane(), SET_QUERIES)
    return jnp.concatenate([jnp.where(query == n, words, 0) for n in range(SET_QUERIES)])


def mix_of_octet(p: Problem, words: jax.Array) -> jax.Array:
    """The same with sets in rows: 64 x (query, head, key) words.

    A word has the code of an even key in its low half, that of an odd one in its high half: the
    place in its rows of 16 bits. Products with ones and zeros turn codes exactly.
    """
    codes = pltpu.bitcast(words, p.dtype)
    row = lax.broadcasted_iota(jnp.int32, (SETS, LANES), 0)
    column = lax.broadcasted_iota(jnp.int32, (SETS, LANES), 1)
    gather = (lax.div(column, SET_QUERIES) == row).astype(p.dtype)
    bits = pltpu.bitcast(matrix_product(gather, codes, (1, 1)), jnp.int32)
    is_even = lax.rem(lane(), 2) == 0
    return jnp.where(is_even, low_half(bits), bits)


def rows_of_mix(p: Problem, mix_ref: Any, first: int, sets: int) -> jax.Array:
    """Some sets' codes of 8 keys as an operand: rows (set, key), the other keys' set to zero."""
    word = lax.broadcasted_iota(jnp.int32, (OCTET, LANES), 0)
    key = lax.rem(lax.broadcasted_iota(jnp.int32, (OCTET, LANES), 1), OCTET)
    is_own = lax.div(key, 2) == lax.rem(word, OCTET // 2)
    low, high = (is_own & (lax.div(word, OCTET // 2) == n) for n in range(2))
    words = []
    for i in range(first, first + sets, 2):
        row, other = (mix_ref[pl.ds(i + n, 1)] for n in range(2))
        words.append(jnp.where(low, row, jnp.where(high, other, 0)))
    return pltpu.bitcast(jnp.concatenate(words), p.dtype)


def low_half(bits: jax.Array) -> jax.Array:
    return lax.shift_right_logical(bits, 16)
