"""Parts shared by both softmax kernels: problem, tiles and hidden pairs.

Keys lie on sublanes and queries on lanes, so a row's maximum and sum are plain vector operations. A
tile is 128 keys by 128 queries. Matrix and vector units work on neighbouring tiles at a time: the
programs interleave the stages of both, and the compiler keeps that order.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hyla_lm.attention.lanes import LANES

HIDDEN = -1e30  # added to the score of a pair that is not visible
NOTHING_SEEN = -1e29  # below every visible score and above every hidden one
LOG2_E = 1.4426950408889634
MAX_TILES = 80  # tiles of one program; its length and compile time grow with them


@dataclass(frozen=True)
class Problem:
    """Sizes of one call: lengths in whole blocks of 128, head sizes in multiples of 16."""

    batch: int
    heads: int
    key_dim: int
    value_dim: int
    scale: float
    query_blocks: int
    key_blocks: int
    causal: bool
    q_offset: int
    dtype: jnp.dtype

    @property
    def queries(self) -> int:
        return self.query_blocks * LANES

    @property
    def keys(self) -> int:
        return self.key_blocks * LANES

    @property
    def heads_at_once(self) -> int:
        """Heads of one program: the most that divide all heads within MAX_TILES, at least one."""
        tiles = sum(map(self.key_blocks_seen, range(self.query_blocks)))
        fitting = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
        return max([n for n in fitting if n * tiles <= MAX_TILES], default=1)

    def key_blocks_seen(self, query_block: int) -> int:
        """The number of key blocks that a query block may see, at least one."""
        if not self.causal:
            return self.key_blocks
        last_query = self.q_offset + query_block * LANES + LANES - 1
        return min(max(last_query // LANES + 1, 1), self.key_blocks)

    def key_rows(self, head: int) -> slice:
        return slice(head * self.key_dim, (head + 1) * self.key_dim)

    def value_rows(self, head: int) -> slice:
        return slice(head * self.value_dim, (head + 1) * self.value_dim)


def block(index: int) -> slice:
    return slice(index * LANES, (index + 1) * LANES)


@dataclass(frozen=True)
class Specs:
    """Blocks of one grid step (batch, group of heads): whole rows of the group's heads."""

    p: Problem

    def rows(self, size: int, length: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, self.p.heads_at_once * size, length), lambda b, h: (b, h, 0))

    @property
    def log_z(self) -> pl.BlockSpec:
        shape = (1, self.p.heads_at_once, 1, self.p.queries)
        return pl.BlockSpec(shape, lambda b, h: (b, h, 0, 0))

    @property
    def operands(self) -> list[pl.BlockSpec]:
        p = self.p
        return [
            self.rows(p.key_dim, p.queries),
            self.rows(p.key_dim, p.keys),
            self.rows(p.value_dim, p.keys),
            *(pl.BlockSpec((1, 1, size), lambda b, h: (b, 0, 0)) for size in (p.queries, p.keys)),
        ]


def write_hidden_once(p: Problem, q_segment_ref: Any, k_segment_ref: Any, hidden_ref: Any) -> None:
    """Writes what is added to the scores of all heads: HIDDEN for hidden pairs, else 0."""

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        for keys in range(p.key_blocks):
            k_segment_1xS = k_segment_ref[0, :, block(keys)]
            k_segment_SxT = jnp.broadcast_to(k_segment_1xS, (LANES, LANES)).T
            for queries in range(p.query_blocks):
                visible = k_segment_SxT == q_segment_ref[0, :, block(queries)]
                if p.causal:
                    first_query = p.q_offset + queries * LANES
                    key = lax.broadcasted_iota(jnp.int32, visible.shape, 0) + keys * LANES
                    query = lax.broadcasted_iota(jnp.int32, visible.shape, 1) + first_query
                    visible &= key <= query
                hidden_ref[block(keys), block(queries)] = jnp.where(visible, 0.0, HIDDEN)
