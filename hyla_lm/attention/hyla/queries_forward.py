"""HYLA forward on TPU with queries on lanes: one pass over the block pairs, in a software pipeline.

A span of query blocks visits the blocks of keys one by one. While the vector unit sums y over the
last pair, in stages of 32 keys, the matrix units compute the hidden layers of the next stage. A
pair's codes are computed in one piece just before its first stage.

x of 16 keys is one product with their codes if each key's weights stand only in its own columns
(head, key). The kernels order the rows of these value networks as they read x.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.hyla.codes import (
    GROUP_KEYS,
    GROUPS,
    Problem,
    codes_of_group,
    operand_shape,
    write_codes,
    write_keys,
)
from hyla_lm.attention.lanes import LANES, lane, matrix_product, repeat, rows_at, unrolled
from hyla_lm.attention.spec import ACTIVATIONS

STAGE_KEYS = 32
STAGES = LANES // STAGE_KEYS
HEADS_AT_ONCE = 4
CHEAP_ACTIVATIONS = ("identity", "relu")
SPAN_BYTES = 16 * 2**20


@dataclass(frozen=True)
class ForwardBlocks:
    """`query_blocks` share one block of keys; registers sum `value_tile` units at a time."""

    query_blocks: int = 8
    value_tile: int = 32


# By (heads, K, U): the fewest cycles of a causal forward pass at T = 1024 in bfloat16, among 4, 8
# and 16 query blocks and tiles of 16, 32 and 64 units. Comments: its cycles against the default's.
FORWARD_BLOCKS: Mapping[tuple[int, int, int], ForwardBlocks] = MappingProxyType(
    {
        (4, 64, 64): ForwardBlocks(8, 64),  # 194,988 against 195,132
        (4, 128, 128): ForwardBlocks(8, 16),  # 412,734 against 423,102
        (8, 32, 32): ForwardBlocks(8, 32),  # 139,409, the default
        (8, 64, 64): ForwardBlocks(8, 32),  # 214,414, the default
        (8, 128, 128): ForwardBlocks(8, 32),  # 552,976, the default
        (16, 32, 32): ForwardBlocks(8, 32),  # 287,179, the default
        (16, 64, 64): ForwardBlocks(8, 16),  # 534,874 against 537,682
    }
)


def forward_blocks(p: Problem) -> ForwardBlocks:
    """The table's blocks for (heads, K, U), or else the default cut to fit VMEM."""
    known = FORWARD_BLOCKS.get((p.heads, p.key_dim, p.value_dim))
    if known is not None:
        return known
    bytes_per_block = p.heads * p.value_dim * LANES * (4 + 2 * p.dtype.itemsize)
    fitting = max(1, SPAN_BYTES // bytes_per_block)
    tile = next(size for size in (32, 16) if p.value_dim % size == 0)
    return ForwardBlocks(min(ForwardBlocks.query_blocks, fitting), tile)


@partial(jax.jit, static_argnums=(0, 1))  # traced and lowered once for all layers
def forward(
    p: Problem,
    blocks: ForwardBlocks,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    segments: tuple[jax.Array, ...],
    q_offset: tuple[jax.Array, ...],
) -> jax.Array:
    """y, shape B x HU x T; segments are (Bx1xT, Bx1xS) or empty, then weights BxNxT."""
    span = min(blocks.query_blocks, p.query_blocks)
    maps = IndexMaps(p, span)
    width = p.heads * p.value_dim
    stage = pltpu.VMEM((STAGE_KEYS * p.value_dim, LANES), jnp.float32)
    call = pl.pallas_call(
        partial(_kernel, p, blocks, maps),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(q_offset),
            grid=maps.grid,
            in_specs=maps.operands(),
            out_specs=pl.BlockSpec((1, width, span * LANES), maps.of_output),
            scratch_shapes=[
                pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
                pltpu.VMEM((2, *network_shape(p)), jnp.int32),
                pltpu.VMEM((2, p.heads, LANES, LANES), jnp.float32),
                pltpu.VMEM((2, *operand_shape(p)), p.dtype),
                stage,
                stage,
                pltpu.VMEM((span, width, LANES), jnp.float32),
                pltpu.SMEM((3,), jnp.int32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((p.batch, width, p.query_blocks * LANES), p.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="hyla_forward",
    )
    return call(*q_offset, q_BxHKxT, k_BxHKxS, v_BxHUxS, *segments)


@dataclass(frozen=True)
class IndexMaps:
    """Index maps of the grid (batch, span of query blocks, key block, query block in the span).

    Fully masked steps repeat a neighbour's blocks, so nothing is fetched for them.
    """

    p: Problem
    span: int

    @property
    def grid(self) -> tuple[int, ...]:
        p = self.p
        return p.batch, pl.cdiv(p.query_blocks, self.span), p.key_blocks, self.span

    def operands(self) -> list[pl.BlockSpec]:
        """The blocks of q, k and v, of the segments of queries and keys, and of weights."""
        p = self.p
        specs = [
            pl.BlockSpec((1, p.heads * p.key_dim, LANES), self.of_queries),
            pl.BlockSpec((1, p.heads * p.key_dim, LANES), self.of_keys),
            pl.BlockSpec((1, p.heads * p.value_dim, LANES), self.of_keys),
            pl.BlockSpec((1, 1, LANES), self.of_queries),
            pl.BlockSpec((1, 1, LANES), self.of_keys),
        ]
        of_weights = [pl.BlockSpec((1, p.weights, LANES), self.of_queries)]
        return specs[: 3 + 2 * p.has_segments] + of_weights[: p.weights]

    def offset(self, prefetched: tuple[Any, ...]) -> Any:
        return prefetched[0][0] if prefetched else self.p.q_offset

    def last_query_block(self, m: Any) -> Any:
        return jnp.minimum((m + 1) * self.span, self.p.query_blocks) - 1

    def first_query_block(self, m: Any, j: Any, offset: Any) -> Any:
        return jnp.maximum(m * self.span, self.p.first_query_block(j, offset))

    def last_key_block(self, m: Any, offset: Any) -> Any:
        return self.p.last_key_block(self.last_query_block(m), offset)

    def of_queries(self, b: Any, m: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        first = self.first_query_block(m, j, self.offset(prefetched))
        block = jnp.maximum(m * self.span + i, first)
        return b, 0, jnp.minimum(block, self.last_query_block(m))

    def of_keys(self, b: Any, m: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        return b, 0, jnp.minimum(j, self.last_key_block(m, self.offset(prefetched)))

    def of_output(self, b: Any, m: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        return b, 0, m


def _kernel(p: Problem, blocks: ForwardBlocks, maps: IndexMaps, *refs: Any) -> None:
    prefetched, refs = refs[: p.q_offset is None], refs[p.q_offset is None :]
    q_ref, k_ref, v_ref, *segment_refs = refs[:-9]
    y_ref, keys_ref, network_ref, code_ref, operand_ref, even_ref, odd_ref = refs[-9:-2]
    sum_ref, last_ref = refs[-2:]
    m, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
    offset, block = maps.offset(prefetched), m * maps.span + i
    last_block = maps.last_query_block(m)
    starts = (j == 0) & (i == 0)
    ends = (block == last_block) & (j == maps.last_key_block(m, offset))
    pipeline = _Pipeline(p, blocks.value_tile, network_ref, code_ref, operand_ref)

    @pl.when(starts)
    def _() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)
        for index in range(3):
            last_ref[index] = 0

    @pl.when((block <= last_block) & p.sees(block, j, offset))
    def _() -> None:
        old = _Pair(last_ref[0], last_ref[1], last_ref[2])
        starts_keys = block == maps.first_query_block(m, j, offset)
        network = jnp.where(starts_keys, 1 - old.network, old.network)
        new = _Pair(1 - old.code, network, i)
        write = partial(
            write_codes,
            p,
            q_ref,
            keys_ref,
            segment_refs,
            (offset + block * LANES, j * LANES),
            code_ref.at[new.code],
            operand_ref.at[new.code],
        )

        @pl.when(starts_keys)
        def _() -> None:
            write_keys(p, k_ref, keys_ref)
            write()
            write_networks_by_key(p, v_ref, network_ref.at[new.network])

        pl.when(~starts_keys)(write)
        pl.when(starts)(lambda: pipeline.fill(new, even_ref))

        def run(turn: Any, carry: int) -> int:
            pair = _Pair(*(jnp.where(turn == 0, o, n) for o, n in zip(old, new, strict=True)))
            pipeline.run(pair, new, (even_ref, odd_ref), sum_ref.at[pair.query_block])
            return carry

        lax.fori_loop(jnp.where(starts, 1, 0), jnp.where(ends, 2, 1), run, 0)
        last_ref[0], last_ref[1], last_ref[2] = new

    @pl.when(ends)
    def _() -> None:
        for query_block in range(maps.span):
            columns = pl.ds(query_block * LANES, LANES)
            y_ref[0, :, columns] = sum_ref[query_block].astype(y_ref.dtype)


class _Pair(NamedTuple):
    """The slots of a block pair's codes and value networks, and its query block in the span."""

    code: Any
    network: Any
    query_block: Any


@dataclass(frozen=True)
class _Pipeline:
    """Computes x of the next stage on the matrix units and y of this one on the vector unit."""

    p: Problem
    value_tile: int
    network_ref: Any
    code_ref: Any
    operand_ref: Any

    @property
    def turns(self) -> int:
        """Turns of a stage; each sums four heads and computes a share of the next stage."""
        return self.p.heads // HEADS_AT_ONCE

    @property
    def turn_keys(self) -> int:
        return STAGE_KEYS // self.turns

    def fill(self, pair: _Pair, z_ref: Any) -> None:
        """Computes z of a pair's first stage."""
        for turn in range(self.turns):
            self._make_z(pair, 0, turn, z_ref)

    def run(self, old: _Pair, new: _Pair, z_refs: tuple[Any, Any], sum_ref: Any) -> None:
        """Adds y of the old pair to sum_ref, HU x 128; computes z of the new pair's first stage."""

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
        phi = _identity if self._is_cheap else ACTIVATIONS[p.activation]
        for start in range(0, self.turn_keys, keys):
            first = turn * self.turn_keys + start
            key = stage * STAGE_KEYS + first
            rows = pl.ds(pl.multiple_of(key * p.words_per_key, 8), keys * p.words_per_key)
            x = jnp.zeros((keys * p.value_dim, LANES), jnp.float32)
            for tile in range(p.code_tiles):
                network = pltpu.bitcast(self.network_ref[pair.network, tile, rows], p.dtype)
                codes = codes_of_group(p, self.operand_ref.at[pair.code], key // GROUP_KEYS, tile)
                product = matrix_product(network[:, : p.code_width], codes)
                x = product if tile == 0 else x + product
            rows = pl.ds(pl.multiple_of(first * p.value_dim, 8), keys * p.value_dim)
            z_ref[rows] = phi(x)

    def _sum_y(self, pair: _Pair, stage: Any, turn: Any, z_ref: Any, sum_ref: Any) -> None:
        """y of four heads: sum over a stage's keys of code times z, tile by tile in registers."""
        p, tile = self.p, self.value_tile
        phi = ACTIVATIONS[p.activation] if self._is_cheap else _identity
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
                    code = self.code_ref[pair.code, first_head + head, pl.ds(first_key + key, 1)]
                    sums[head] += code * z
                return sums

            sums = unrolled(STAGE_KEYS, add_key, [sum_ref[row] for row in rows])
            for row, y in zip(rows, sums, strict=True):
                sum_ref[row] = y

    @property
    def _is_cheap(self) -> bool:
        """Whether phi is applied where z is read, twice a unit: a cheap phi delays no product."""
        return self.p.activation in CHEAP_ACTIVATIONS


def _identity(x: jax.Array) -> jax.Array:
    return x


def network_shape(p: Problem) -> tuple[int, int, int]:
    """The shape of one block of keys: tiles x 32-bit rows x 128 columns."""
    return p.code_tiles, LANES * p.words_per_key, LANES


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
    network_ref[rows_at(group * GROUP_KEYS + key, p.words_per_key)] = words & own


def group_values(p: Problem, v_ref: Any) -> dict[tuple[int, int], jax.Array]:
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


def column_key(width: int = LANES) -> jax.Array:
    """The key within its group of each column (head, key)."""
    return lax.rem(lane(width), GROUP_KEYS)
