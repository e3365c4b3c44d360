"""HYLA forward on TPU with queries on lanes: one pass over the block pairs, in a software pipeline.

A span of query blocks visits the blocks of keys one by one. While the vector unit sums y over the
last pair, in stages of 32 keys, the matrix units compute the hidden layers of the next stage. A
pair's codes are computed in one piece just before its first stage.

x of 16 keys is one product with their codes if each key's weights stand only in its own columns
(head, key). The kernels order the rows of these value networks as they read x.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.codes import (
    GROUP_KEYS,
    GROUPS,
    code_tiles,
    code_width,
    codes_of_group,
    operand_shape,
    words_per_key,
    write_codes,
    write_keys,
)
from hyla_lm.attention.hyla.grids import ForwardStep
from hyla_lm.attention.lanes import LANES, Problem, lane, matrix_product, repeat, rows_at, unrolled
from hyla_lm.attention.spec import ACTIVATIONS

STAGE_KEYS = 32
STAGES = LANES // STAGE_KEYS
HEADS_AT_ONCE = 4
CHEAP_ACTIVATIONS = ("identity", "relu")
SPAN_BYTES = 16 * 2**20


# Query blocks that share one block of keys, and units that registers sum at a time.
DEFAULT_BLOCKS = 8, 32
# By (heads, K, U): the fewest cycles of a causal forward pass at T = 1024 in bfloat16, among 4, 8
# and 16 query blocks and tiles of 16, 32 and 64 units. Comments: its cycles against the default's,
# which is best for (8, 32, 32), (8, 64, 64), (8, 128, 128) and (16, 32, 32).
FORWARD_BLOCKS = {
    (4, 64, 64): (8, 64),  # 194,988 against 195,132
    (4, 128, 128): (8, 16),  # 412,734 against 423,102
    (16, 64, 64): (8, 16),  # 534,874 against 537,682
}


def forward_blocks(p: Problem) -> tuple[int, int]:
    """The table's blocks for (heads, K, U), or else the default cut to fit VMEM."""
    known = FORWARD_BLOCKS.get((p.heads, p.key_dim, p.value_dim))
    if known is not None:
        return known
    bytes_per_block = p.heads * p.value_dim * LANES * (4 + 2 * p.dtype.itemsize)
    fitting = max(1, SPAN_BYTES // bytes_per_block)
    tile = next(size for size in (DEFAULT_BLOCKS[1], 16) if p.value_dim % size == 0)
    return min(DEFAULT_BLOCKS[0], fitting), tile


class _Pair(NamedTuple):
    """The slots of a block pair's codes and value networks, and its query block in the span."""

    code: Any
    network: Any
    query_block: Any


@dataclass(frozen=True)
class QueriesForward:
    """Computes x of the next stage on the matrix units and y of this one on the vector unit.

    Every field but the first is scratch memory. `even` and `odd` have z of a stage each, `last` the
    pair before this one.
    """

    p: Problem
    keys: Any
    network: Any
    code: Any
    operand: Any
    even: Any
    odd: Any
    sums: Any
    last: Any

    @staticmethod
    def scratch(p: Problem, span: int) -> tuple[Any, ...]:
        stage = pltpu.VMEM((STAGE_KEYS * p.value_dim, LANES), jnp.float32)
        return (
            pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
            pltpu.VMEM((2, *network_shape(p)), jnp.int32),
            pltpu.VMEM((2, p.heads, LANES, LANES), jnp.float32),
            pltpu.VMEM((2, *operand_shape(p)), p.dtype),
            stage,
            stage,
            pltpu.VMEM((span, p.heads * p.value_dim, LANES), jnp.float32),
            pltpu.SMEM((3,), jnp.int32),
        )

    def visit(
        self, step: ForwardStep, q_ref: Any, k_ref: Any, v_ref: Any, segment_refs: list[Any]
    ) -> None:
        """The codes of this pair, y of the last, and of this one too if it ends the span."""
        p = self.p
        old = _Pair(self.last[0], self.last[1], self.last[2])
        starts_keys = step.starts_keys
        network = jnp.where(starts_keys, 1 - old.network, old.network)
        new = _Pair(1 - old.code, network, step.i)
        write = partial(
            write_codes,
            *(p, q_ref, self.keys, segment_refs, step.positions),
            *(self.code.at[new.code], self.operand.at[new.code]),
        )

        @pl.when(starts_keys)
        def _() -> None:
            write_keys(p, k_ref, self.keys)
            write()
            write_networks_by_key(p, v_ref, self.network.at[new.network])

        pl.when(~starts_keys)(write)

        @pl.when(step.starts)
        def _() -> None:
            for turn in range(self.turns):
                self._make_z(new, 0, turn, self.even)

        def run(turn: Any, carry: int) -> int:
            pair = _Pair(*(jnp.where(turn == 0, o, n) for o, n in zip(old, new, strict=True)))
            self._run(pair, new, self.sums.at[pair.query_block])
            return carry

        lax.fori_loop(jnp.where(step.starts, 1, 0), jnp.where(step.ends, 2, 1), run, 0)
        self.last[0], self.last[1], self.last[2] = new

    def write_y(self, query_block: int, y_ref: Any) -> None:
        """y of a query block, HU x 128."""
        y_ref[0, :, pl.ds(query_block * LANES, LANES)] = self.sums[query_block].astype(y_ref.dtype)

    @property
    def turns(self) -> int:
        """Turns of a stage; each sums four heads and computes a share of the next stage."""
        return self.p.heads // HEADS_AT_ONCE

    @property
    def turn_keys(self) -> int:
        return STAGE_KEYS // self.turns

    def _run(self, old: _Pair, new: _Pair, sum_ref: Any) -> None:
        """Adds y of the old pair to sum_ref, HU x 128; computes z of the new pair's first stage."""
        z_refs = self.even, self.odd

        def one_turn(stage: Any, now_ref: Any, next_ref: Any, turn: Any, carry: int) -> int:
            wraps = stage == STAGES - 1
            pair = _Pair(*(jnp.where(wraps, n, o) for n, o in zip(new, old, strict=True)))
            self._make_z(pair, jnp.where(wraps, 0, stage + 1), turn, next_ref)
            self._sum_y(old, stage, turn, now_ref, sum_ref)
            return carry

        def two_stages(half: Any, carry: int) -> int:
            for odd in range(2):
                turns = partial(one_turn, 2 * half + odd, z_refs[odd], z_refs[1 - odd])
                lax.fori_loop(0, self.turns, turns, carry)
            return carry

        lax.fori_loop(0, STAGES // 2, two_stages, 0)

    def _make_z(self, pair: _Pair, stage: Any, turn: Any, z_ref: Any) -> None:
        p = self.p
        keys = min(self.turn_keys, GROUP_KEYS)
        phi = ACTIVATIONS["identity" if self._is_cheap else p.activation]
        for start in range(0, self.turn_keys, keys):
            first = turn * self.turn_keys + start
            key = stage * STAGE_KEYS + first
            rows = pl.ds(pl.multiple_of(key * words_per_key(p), 8), keys * words_per_key(p))
            x = jnp.zeros((keys * p.value_dim, LANES), jnp.float32)
            for tile in range(code_tiles(p)):
                network = pltpu.bitcast(self.network[pair.network, tile, rows], p.dtype)
                codes = codes_of_group(p, self.operand.at[pair.code], key // GROUP_KEYS, tile)
                product = matrix_product(network[:, : code_width(p)], codes)
                x = product if tile == 0 else x + product
            rows = pl.ds(pl.multiple_of(first * p.value_dim, 8), keys * p.value_dim)
            z_ref[rows] = phi(x)

    def _sum_y(self, pair: _Pair, stage: Any, turn: Any, z_ref: Any, sum_ref: Any) -> None:
        """y of four heads: sum over a stage's keys of code times z, tile by tile in registers."""
        p, (_, tile) = self.p, forward_blocks(self.p)
        phi = ACTIVATIONS[p.activation if self._is_cheap else "identity"]
        first_head = turn * HEADS_AT_ONCE
        first_sum = pl.multiple_of(first_head * p.value_dim, 8)
        first_key = pl.multiple_of(stage * STAGE_KEYS, STAGE_KEYS)
        for unit in range(0, p.value_dim, tile):
            rows = [
                pl.ds(first_sum + head * p.value_dim + unit, tile) for head in range(HEADS_AT_ONCE)
            ]

            def add_key(key: Any, sums: list[jax.Array], unit: int = unit) -> list[jax.Array]:
                row = pl.multiple_of(key * p.value_dim + unit, tile)
                z = phi(z_ref[pl.ds(row, tile)])
                for head in range(HEADS_AT_ONCE):
                    code = self.code[pair.code, first_head + head, pl.ds(first_key + key, 1)]
                    sums[head] += code * z
                return sums

            sums = unrolled(STAGE_KEYS, add_key, [sum_ref[row] for row in rows])
            for row, y in zip(rows, sums, strict=True):
                sum_ref[row] = y

    @property
    def _is_cheap(self) -> bool:
        """Whether phi is applied where z is read, twice a unit: a cheap phi delays no product."""
        return self.p.activation in CHEAP_ACTIVATIONS


def network_shape(p: Problem) -> tuple[int, int, int]:
    """The shape of one block of keys: tiles x 32-bit rows x 128 columns."""
    return code_tiles(p), LANES * words_per_key(p), LANES


def write_networks_by_key(p: Problem, v_ref: Any, network_ref: Any) -> None:
    """Writes the value networks of 128 keys as block diagonals over the codes of their group.

    Row (key, unit) has that key's weights in its own columns and zeros in those of the other keys,
    so its product with the codes of the group is x of that key alone.
    """
    for (group, tile), words in group_values(p, v_ref).items():
        repeat(GROUP_KEYS, partial(_write_network, p, words, network_ref.at[tile], group))


def _write_network(p: Problem, words: jax.Array, network_ref: Any, group: int, key: Any) -> None:
    """Writes the network of a key of a group."""
    own = jnp.where(column_key() == key, -1, 0)
    network_ref[rows_at(group * GROUP_KEYS + key, words_per_key(p))] = words & own


def group_values(p: Problem, v_ref: Any) -> dict[tuple[int, int], jax.Array]:
    """The value networks of 128 keys by (group, tile): 32-bit words of U x 128 (head, key)."""
    words = [
        pltpu.bitcast(v_ref[0, p.head(head, p.value_dim)], jnp.int32) for head in range(p.heads)
    ]
    column_head = lax.div(lane(), GROUP_KEYS)
    mixed = {}
    for group in range(GROUPS):
        for tile in range(code_tiles(p)):
            mixed[group, tile] = jnp.zeros_like(words[0])
            for place in range(min(p.heads, GROUPS)):
                head = tile * GROUPS + place
                moved = pltpu.roll(words[head], (place - group) * GROUP_KEYS % LANES, 1)
                mixed[group, tile] = jnp.where(column_head == place, moved, mixed[group, tile])
    return mixed


def column_key(width: int = LANES) -> jax.Array:
    """The key within its group of each column (head, key)."""
    return lax.rem(lane(width), GROUP_KEYS)
