"""The value networks of a block of keys, laid out for the matrix units, and their gradient.

x of 16 keys is one product with their codes if each key's weights stand only in its own columns
(head, key). The kernels order the rows as they read x.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.tpu_common import GROUP_KEYS, GROUPS, OCTET, OCTETS, Problem
from hyla_lm.attention.lanes import LANES, lane, matrix_product
from hyla_lm.attention.unrolled import repeat, rows_at, unrolled


def network_shape(p: Problem) -> tuple[int, int, int]:
    """The shape of one block of keys: tiles x 32-bit rows x 128 columns."""
    return p.code_tiles, LANES * p.words_per_key, LANES


def write_networks_by_key(p: Problem, v_ref: Any, network_ref: Any) -> None:
    """Writes the value networks of 128 keys as block diagonals over the codes of their group.

    Row (key, unit) has that key's weights in its own columns and zeros in those of the other keys,
    so its product with the codes of the group is x of that key alone.
    """
    for (group, tile), words in _group_values(p, v_ref).items():
        repeat(GROUP_KEYS, partial(_write_network, p, words, network_ref.at[tile], group))


def write_networks_by_unit(p: Problem, v_ref: Any, mixed_ref: Any, network_ref: Any) -> None:
    """Writes the value networks of 128 keys as block diagonals over the codes of their group.

    Rows are ordered (8 keys, unit, key), so that x has 8 keys of one unit in a register.
    """
    row_key = lax.broadcasted_iota(jnp.int32, (OCTET, LANES), 0)
    for (group, tile), words in _group_values(p, v_ref).items():
        mixed_ref[...] = pltpu.bitcast(words, p.dtype).astype(jnp.float32)
        for half in range(GROUP_KEYS // OCTET):
            own = _column_key() == row_key + half * OCTET
            size = OCTET * p.words_per_key
            network = network_ref.at[tile, pl.ds((2 * group + half) * size, size)]
            repeat(p.value_dim // 2, partial(_write_two_units, p, own, mixed_ref, network))


def write_weights(p: Problem, v_ref: Any, weights_ref: Any) -> None:
    """Writes v of 8 keys at a time: rows (head, key), columns (unit, key), diagonal in keys."""
    columns = OCTET * p.value_dim
    row_unit = lax.broadcasted_iota(jnp.int32, (p.value_dim, columns), 0)
    column = lax.broadcasted_iota(jnp.int32, (p.value_dim, columns), 1)
    spread_UxUS = (lax.div(column, OCTET) == row_unit).astype(p.dtype)
    row_key = lax.rem(lax.broadcasted_iota(jnp.int32, (LANES, columns), 0), OCTET)
    own = row_key == lax.rem(lax.broadcasted_iota(jnp.int32, (LANES, columns), 1), OCTET)
    for head in range(0, p.heads, 2):
        two = []
        for odd in range(2):
            v_SxU = v_ref[0, p.head(head + odd, p.value_dim)].T
            two.append(jnp.where(own, matrix_product(v_SxU, spread_UxUS), 0.0))
        for octet in range(OCTETS):
            both = jnp.concatenate([weights[p.head(octet, OCTET)] for weights in two])
            weights_ref[octet, pl.ds(head * OCTET, 2 * OCTET)] = both.astype(p.dtype)


def read_networks(p: Problem, sum_ref: Any, dv_ref: Any) -> None:
    """Reads dv, HU x 128 keys, from the sums over queries of dx times each code of the key's group.

    Sets the sums to zero for the next keys.
    """
    group_of_lane = lax.div(lane(), GROUP_KEYS)
    dv = [jnp.zeros((p.value_dim, LANES), jnp.float32) for _ in range(p.heads)]
    for group in range(GROUPS):
        for tile in range(p.code_tiles):
            mixed = unrolled(
                GROUP_KEYS,
                partial(_read_network, p, sum_ref.at[tile, pl.ds(2 * group, 2)]),
                jnp.zeros((p.value_dim, p.code_width), jnp.float32),
            )
            for octet in (2 * group, 2 * group + 1):
                sum_ref[tile, octet] = jnp.zeros_like(sum_ref[tile, octet])
            mixed = jnp.concatenate([mixed] * (LANES // p.code_width), axis=1)
            for place in range(p.code_width // GROUP_KEYS):
                head = tile * GROUPS + place
                moved = pltpu.roll(mixed, (group - place) * GROUP_KEYS % LANES, 1)
                dv[head] = jnp.where(group_of_lane == group, moved, dv[head])
    for head in range(p.heads):
        dv_ref[0, p.head(head, p.value_dim)] = dv[head].astype(dv_ref.dtype)


def _write_network(p: Problem, words: jax.Array, network_ref: Any, group: int, key: Any) -> None:
    """Writes the network of a key of a group."""
    own = jnp.where(_column_key() == key, -1, 0)
    network_ref[rows_at(group * GROUP_KEYS + key, p.words_per_key)] = words & own


def _write_two_units(
    p: Problem, own: jax.Array, mixed_ref: Any, network_ref: Any, pair: Any
) -> None:
    """Writes two units of the networks of 8 keys, whose columns are their own."""
    units = [jnp.where(own, mixed_ref[pl.ds(2 * pair + odd, 1)], 0.0) for odd in range(2)]
    words = pltpu.bitcast(jnp.concatenate(units).astype(p.dtype), jnp.int32)
    network_ref[rows_at(pair, words.shape[0])] = words


def _read_network(p: Problem, sum_ref: Any, key: Any, mixed_UxHS: jax.Array) -> jax.Array:
    """Adds the columns of a key of a group."""
    rows = sum_ref[lax.div(key, OCTET), pl.ds(lax.rem(key, OCTET), p.value_dim, stride=OCTET)]
    return jnp.where(_column_key(p.code_width) == key, rows, mixed_UxHS)


def _group_values(p: Problem, v_ref: Any) -> dict[tuple[int, int], jax.Array]:
    """The value networks of 128 keys by (group, tile): 32-bit words of U x 128 (head, key)."""
    words = [
        pltpu.bitcast(v_ref[0, p.head(head, p.value_dim)], jnp.int32) for head in range(p.heads)
    ]
    column_head = lax.div(lane(), GROUP_KEYS)
    mixed = {}
    for group in range(GROUPS):
        for tile in range(p.code_tiles):
            mixed[group, tile] = jnp.zeros_like(words[0])
            for place in range(min(p.heads, GROUPS)):
                head = tile * GROUPS + place
                moved = pltpu.roll(words[head], (place - group) * GROUP_KEYS % LANES, 1)
                mixed[group, tile] = jnp.where(column_head == place, moved, mixed[group, tile])
    return mixed


def _column_key(width: int = LANES) -> jax.Array:
    """The key within its group of each column (head, key)."""
    return lax.rem(lane(width), GROUP_KEYS)
