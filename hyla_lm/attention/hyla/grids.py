"""The grids of the HYLA kernels on TPU: which blocks of queries and keys a step meets.

Fully masked steps repeat a neighbour's blocks, so nothing is fetched for them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.experimental import pallas as pl

from hyla_lm.attention.lanes import LANES, Problem

IndexMap = Callable[..., tuple[Any, ...]]


def operand_specs(p: Problem, of_queries: IndexMap, of_keys: IndexMap) -> list[pl.BlockSpec]:
    """The blocks of q, k and v, of the segments of queries and keys, and of weights."""
    specs = [
        pl.BlockSpec((1, p.heads * p.key_dim, LANES), of_queries),
        pl.BlockSpec((1, p.heads * p.key_dim, LANES), of_keys),
        pl.BlockSpec((1, p.heads * p.value_dim, LANES), of_keys),
        pl.BlockSpec((1, 1, LANES), of_queries),
        pl.BlockSpec((1, 1, LANES), of_keys),
    ]
    of_weights = [pl.BlockSpec((1, p.weights, LANES), of_queries)]
    return specs[: 3 + 2 * p.has_segments] + of_weights[: p.weights]


@dataclass(frozen=True)
class ForwardMaps:
    """Index maps of the grid (batch, span of query blocks, key block, query block in the span)."""

    p: Problem
    span: int

    @property
    def grid(self) -> tuple[int, ...]:
        p = self.p
        return p.batch, pl.cdiv(p.query_blocks, self.span), p.key_blocks, self.span

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


@dataclass(frozen=True)
class ForwardStep:
    """A step of the forward grid: the query block `i` of span `m`, `block` of all, and keys `j`."""

    maps: ForwardMaps
    m: Any
    j: Any
    i: Any
    offset: Any
    block: Any
    starts: Any  # whether it is the first of its span
    ends: Any  # whether it is the last

    @property
    def starts_keys(self) -> Any:
        """Whether it is the first of its span that sees its block of keys."""
        return self.block == self.maps.first_query_block(self.m, self.j, self.offset)

    @property
    def positions(self) -> tuple[Any, Any]:
        """The positions of its first query and its first key."""
        return self.offset + self.block * LANES, self.j * LANES


@dataclass(frozen=True)
class BackwardMaps:
    """Index maps of the grid (batch, key block, query block)."""

    p: Problem

    def offset(self, prefetched: tuple[Any, ...]) -> Any:
        return prefetched[0][0] if prefetched else self.p.q_offset

    def of_queries(self, b: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        first = self.p.first_query_block(j, self.offset(prefetched))
        return b, 0, jnp.minimum(jnp.maximum(i, first), self.p.query_blocks - 1)

    def of_keys(self, b: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        return b, 0, j
