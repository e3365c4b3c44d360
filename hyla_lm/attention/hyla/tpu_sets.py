"""Sets of queries: the operands of the TPU kernels with units on lanes.

Query 2 i + n is number n of set i. A set's codes for 8 keys, its `mix`, fill the depth of a matrix
unit: (query, head, key). Its hidden layers fill the columns: (query, unit). README.md draws both.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.tpu_common import OCTET, Problem
from hyla_lm.attention.lanes import LANES, lane, matrix_product

SET_QUERIES = 2
SETS = LANES // SET_QUERIES
SET_ROWS = SET_QUERIES * OCTET  # (query, head): the rows of bfloat16 in a vector register


def fits(p: Problem) -> bool:
    """Whether the kernels with units on lanes compute the problem: the shape that is counted."""
    return p.dtype == jnp.bfloat16 and (p.heads, p.value_dim) == (OCTET, SETS)


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
