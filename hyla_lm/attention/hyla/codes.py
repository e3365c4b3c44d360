"""The codes of a block pair, of scores, and their gradient, taken through the scores to dq and dk.

Forward and backward kernels share them. Time lies on lanes (hyla_lm/attention/lanes.py). README.md
draws the layout and counts its cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.lanes import (
    LANES,
    Problem,
    lane,
    matrix_product,
    rows_at,
    weights_of,
)
from hyla_lm.attention.spec import PAIR_NETWORKS, RMS_HEAD_EPSILON

OCTET = 8
OCTETS = LANES // OCTET
CODE_KEYS = 16
MIN_HEADS = 4
PerHead = Sequence[jax.Array]


def padded_heads(p: Problem) -> int:
    """Rows of heads in memory: whole registers, so that those of a set fill a row of operands."""
    return max(MIN_HEADS, power_of_two(p.heads), p.value_dim // OCTET)


def set_queries(p: Problem) -> int:
    """Queries of a set: their units fill the lanes. Set i has queries i, i + U, i + 2 U, ..."""
    return LANES // p.value_dim


def set_rows(p: Problem) -> int:
    """Rows (query, head) of a set."""
    return set_queries(p) * padded_heads(p)


def power_of_two(x: int) -> int:
    """The least one that is not smaller."""
    return 1 << (x - 1).bit_length()


@dataclass(frozen=True)
class HiddenLayers:
    """The codes of a block pair and what they make; every field but the first is scratch memory.

    `made` has the codes that make hidden layers, 8 keys in a slice: rows (head, key), columns of
    queries; `mix` the same in rows of sets, columns (query, head, key). `network` has v of 8 keys
    in a slice: rows (query, head, key), columns (query, unit), each in its own query's. `read` has
    the codes that read out, in slots: rows (query, head), columns of keys.
    """

    p: Problem
    keys: Any
    made: Any
    by_head: Any
    mix: Any
    network: Any
    read: Any

    @staticmethod
    def scratch(p: Problem, slots: int) -> dict[str, Any]:
        heads, depth = padded_heads(p), set_rows(p) * OCTET
        return dict(
            keys=pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
            made=pltpu.VMEM((OCTETS, heads * OCTET, LANES), jnp.float32),
            by_head=pltpu.VMEM((heads, LANES, LANES), jnp.float32),
            mix=pltpu.VMEM((OCTETS, p.value_dim, depth), jnp.float32),
            network=pltpu.VMEM((OCTETS, depth, LANES), jnp.float32),
            read=pltpu.VMEM((slots, LANES * heads, LANES), jnp.float32),
        )

    def write_keys(self, k_ref: Any, v_ref: Any) -> None:
        """A block of keys as 128 x K a head, and their value networks."""
        p, heads = self.p, padded_heads(self.p)
        for head in range(p.heads):
            self.keys[head] = k_ref[0, p.head(head, p.key_dim)].T
        for head in range(heads):
            v = columns_of_set(p, v_ref, head)
            for n in range(set_queries(p)):
                own = jnp.where(column_query(p) == n, v, 0.0)
                rows = p.head(n * heads + head, OCTET)
                self.network[:, rows] = own.reshape(OCTETS, OCTET, LANES)

    def write_codes(
        self,
        q_ref: Any,
        segment_refs: list[Any],
        positions: tuple[Any, Any],
        scale_ref: Any = None,
    ) -> None:
        """The codes of a pair, queries on lanes; `scale_ref` receives what normalised scores."""
        p, heads = self.p, padded_heads(self.p)
        for start in range(0, LANES, CODE_KEYS):
            keys = slice(start, start + CODE_KEYS)
            octets = slice(start // OCTET, (start + CODE_KEYS) // OCTET)
            operands = p, q_ref, self.keys, segment_refs, positions, keys
            made, read, scale = codes_of_keys(*operands)
            zeros = [jnp.zeros_like(scale)] * (heads - p.heads)
            if scale_ref is not None:
                scale_ref[keys] = scale
            for head, a in enumerate([*made, *zeros]):
                self.made[octets, p.head(head, OCTET)] = a.reshape(-1, OCTET, LANES)
            for head, a in enumerate([*read, *zeros]):
                self.by_head[head, keys] = a

    def write_read(self, slot: Any) -> None:
        """Moves queries of the codes that read out from lanes to rows."""
        heads = padded_heads(self.p)
        for head in range(heads):
            self.read.at[slot][pl.ds(head, LANES, stride=heads)] = self.by_head[head].T

    def write_mix(self, octet: Any) -> None:
        """Moves queries of the codes that make hidden layers from lanes to rows, for 8 keys."""
        p = self.p
        of_query = self.made[octet].T.reshape(set_queries(p), p.value_dim, -1)
        self.mix[octet] = jnp.concatenate(list(of_query), axis=1)

    def x(self, octet: Any, first: int, sets: int) -> jax.Array:
        """x of 8 keys and some sets: rows (set, key), columns (query, unit)."""
        depth = set_rows(self.p) * OCTET
        row_key = lax.broadcasted_iota(jnp.int32, (OCTET, depth), 0)
        is_own = lax.rem(lane(depth), OCTET) == row_key
        mix = self.mix.at[octet]
        codes = [jnp.where(is_own, mix[pl.ds(first + i, 1)], 0.0) for i in range(sets)]
        network = self.network[octet].astype(self.p.dtype)
        return matrix_product(jnp.concatenate(codes).astype(self.p.dtype), network)

    def read_of_set(self, slot: Any, i: Any) -> jax.Array:
        """The codes that read out a set: rows (query, head), columns of keys."""
        return rows_of_set(self.p, self.read.at[slot], i).astype(self.p.dtype)


def columns_of_set(p: Problem, x_ref: Any, head: int) -> jax.Array:
    """The units of 128 positions once for each query of a set: 128 x (query, unit), float32.

    Zeros for a head that pads.
    """
    if head >= p.heads:
        return jnp.zeros((LANES, LANES), jnp.float32)
    x_UxT = x_ref[0, p.head(head, p.value_dim)]
    return jnp.concatenate([x_UxT] * set_queries(p)).T.astype(jnp.float32)


def column_query(p: Problem) -> jax.Array:
    """The query of a set of each column (query, unit)."""
    return lax.div(lane(), p.value_dim)


def rows_of_set(p: Problem, ref: Any, i: Any) -> jax.Array:
    """A set's rows (query, head) of those of all queries."""
    return jnp.concatenate([ref[rows] for rows in query_rows(p, i)])


def query_rows(p: Problem, i: Any) -> list[Any]:
    """Where the heads of each query of a set stand in rows (query, head) of 128 queries."""
    return [rows_at(n * p.value_dim + i, padded_heads(p)) for n in range(set_queries(p))]


def codes_of_keys(
    p: Problem,
    q_ref: Any,
    keys_ref: Any,
    segment_refs: list[Any],
    positions: tuple[Any, Any],
    keys: slice,
) -> tuple[Sequence[jax.Array], Sequence[jax.Array], jax.Array]:
    """Codes of some keys, keys x 128 queries a head, and the factor that normalised scores.

    The first make the value network, the second read it out.
    """
    s_SxT = [
        matrix_product(keys_ref[head, keys], q_ref[0, p.head(head, p.key_dim)])
        for head in range(p.heads)
    ]
    scale = jnp.full((keys.stop - keys.start, LANES), p.true_key_dim**-0.5, jnp.float32)
    if p.normalization == "rms_head":
        mean_square = sum(s * s for s in s_SxT) * (1 / (p.heads * p.true_key_dim))
        scale *= lax.rsqrt(mean_square + RMS_HEAD_EPSILON)
    scale = _hide(p, scale, segment_refs, positions, keys.start)
    codes = [s * scale for s in s_SxT]
    if p.normalization in PAIR_NETWORKS:
        weights, visible = weights_of(segment_refs[2 * p.has_segments :]), scale > 0
        made, read = _codes_of_tile(p, jnp.stack(codes), visible, weights)
        return list(made), list(read), scale
    return codes, codes, scale


def _hide(
    p: Problem, x_SxT: jax.Array, segment_refs: list[Any], positions: tuple[Any, Any], start: int
) -> jax.Array:
    """Sets to zero each pair of a key, from `start` on, and a query that does not see it."""
    if p.causal:
        key = lax.broadcasted_iota(jnp.int32, x_SxT.shape, 0) + (positions[1] + start)
        query = lax.broadcasted_iota(jnp.int32, x_SxT.shape, 1) + positions[0]
        x_SxT = jnp.where(key <= query, x_SxT, 0.0)
    if p.has_segments:
        q_segment_1xT, k_segment_1xS = segment_refs[0][0], segment_refs[1][0]
        k_segment_SxT = jnp.broadcast_to(k_segment_1xS, (LANES, LANES)).T
        same = k_segment_SxT[start : start + x_SxT.shape[0]] == q_segment_1xT
        x_SxT = jnp.where(same, x_SxT, 0.0)
    return x_SxT


def _codes_of_tile(
    p: Problem, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The codes of scaled scores that make a value network, and those that read it out."""
    made, read = PAIR_NETWORKS[p.normalization].at(s_HxSxT, visible_SxT, weights)
    return made, made if read is None else read


@dataclass(frozen=True)
class ScoresGradient:
    """The scores of a block pair and the sums of dq and dk; fields from `keys` on are scratch."""

    p: Problem
    q_ref: Any
    k_ref: Any
    weight_refs: list[Any]
    dw_refs: list[Any]
    keys: Any
    scale: Any
    ds: Any
    dq: Any
    dk: Any

    @staticmethod
    def scratch(p: Problem) -> dict[str, Any]:
        key_rows = p.heads * p.key_dim
        return dict(
            scale=pltpu.VMEM((LANES, LANES), jnp.float32),
            ds=pltpu.VMEM((p.heads, LANES, LANES), p.dtype),
            dq=pltpu.VMEM((p.query_blocks, key_rows, LANES), jnp.float32),
            dk=pltpu.VMEM((key_rows, LANES), jnp.float32),
        )

    def make_ds(
        self, query_block: Any, keys: slice, codes: PerHead, da_made: PerHead, da_read: PerHead
    ) -> None:
        """ds = scale * (da - code * mean over heads of code * da), of some keys.

        A pair network's gradient is pulled back from the scores, which are made again.
        """
        p = self.p
        da: PerHead = [read + made for read, made in zip(da_read, da_made, strict=True)]
        if p.normalization == "rms_head":
            along = sum(d * a for d, a in zip(da, codes, strict=True)) * (1 / p.heads)
            da = [d - a * along for d, a in zip(da, codes, strict=True)]
        if p.normalization in PAIR_NETWORKS:
            da = self._pull_back(query_block, keys, da_made, da_read)
        for head in range(p.heads):
            self.ds[head, keys] = (da[head] * self.scale[keys]).astype(p.dtype)

    def add(self, query_block: Any) -> None:
        """Adds the pair's part to dq and dk, from the ds of all its keys."""
        p = self.p
        for head in range(p.heads):
            rows, ds = p.head(head, p.key_dim), self.ds[head]
            self.dq[query_block, rows] += matrix_product(self.k_ref[0, rows], ds)
            self.dk[rows] += matrix_product(self.q_ref[0, rows], ds, (1, 1))

    def _pull_back(
        self, query_block: Any, keys: slice, da_made: PerHead, da_read: PerHead
    ) -> PerHead:
        """The gradient of each head's scaled scores; adds that of the weights."""
        p, scale = self.p, self.scale[keys]
        s = [
            scale * matrix_product(self.keys[head, keys], self.q_ref[0, p.head(head, p.key_dim)])
            for head in range(p.heads)
        ]
        weights, visible = weights_of(self.weight_refs), scale > 0
        _, through = jax.vjp(
            lambda s_HxSxT, weights: _codes_of_tile(p, s_HxSxT, visible, weights),
            jnp.stack(s),
            weights,
        )
        ds_HxSxT, dw_Nx1xT = through((jnp.stack(da_made), jnp.stack(da_read)))
        columns = pl.ds(pl.multiple_of(query_block * LANES, LANES), LANES)
        for dw_ref in self.dw_refs:
            for row in range(p.weights):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]
        return list(ds_HxSxT)
