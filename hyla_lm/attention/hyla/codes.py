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

from hyla_lm.attention.lanes import LANES, matrix_product, weights_of
from hyla_lm.attention.spec import PAIR_NETWORKS, RMS_HEAD_EPSILON, Codes

GROUP_KEYS = 16
GROUPS = LANES // GROUP_KEYS
OCTET = 8
OCTETS = LANES // OCTET
PerHead = Sequence[jax.Array]


@dataclass(frozen=True)
class Problem:
    """Sizes and options of one call, all known when it is traced.

    The arrays have `heads` (4, 8, 16 or 32), `key_dim` and `value_dim` (multiples of 16), and whole
    blocks of 128 queries and keys; a query has `weights` numbers
    for its pair network; `true_heads` and `true_key_dim` are the sizes before
    padding. `q_offset` is None if it is an operand.
    """

    batch: int
    heads: int
    true_heads: int
    key_dim: int
    true_key_dim: int
    value_dim: int
    query_blocks: int
    key_blocks: int
    causal: bool
    q_offset: int | None
    has_segments: bool
    weights: int
    normalization: str
    activation: str
    dtype: jnp.dtype

    @property
    def words_per_key(self) -> int:
        """32-bit rows of one key's value network."""
        return self.value_dim * self.dtype.itemsize // 4

    @property
    def code_tiles(self) -> int:
        """Matrix units that the codes of one group fill."""
        return pl.cdiv(self.heads * GROUP_KEYS, LANES)

    @property
    def code_width(self) -> int:
        return min(self.heads * GROUP_KEYS, LANES)

    def sees(self, query_block: Any, key_block: Any, q_offset: Any) -> Any:
        """Whether the last query of a block may see the first key of another."""
        return not self.causal or key_block * LANES <= q_offset + query_block * LANES + LANES - 1

    def first_query_block(self, key_block: Any, q_offset: Any) -> Any:
        """The first block of queries that sees a block of keys."""
        return lax.div(jnp.maximum(key_block * LANES - q_offset, 0), LANES) if self.causal else 0

    def last_key_block(self, query_block: Any, q_offset: Any) -> Any:
        """The last block of keys that a block of queries sees."""
        last = self.key_blocks - 1
        seen = (q_offset + query_block * LANES + LANES - 1) // LANES
        return jnp.minimum(seen, last) if self.causal else last

    def head(self, index: int, dim: int) -> slice:
        return slice(index * dim, (index + 1) * dim)


def write_keys(p: Problem, k_ref: Any, keys_ref: Any) -> None:
    """Transposes a block of keys, (heads * K) x 128, to one 128 x K array a head."""
    for head in range(p.heads):
        keys_ref[head] = k_ref[0, p.head(head, p.key_dim)].T


def write_codes(
    p: Problem,
    q_ref: Any,
    keys_ref: Any,
    segment_refs: list[Any],
    positions: tuple[Any, Any],
    code_ref: Any,
    operand_ref: Any,
    scale_ref: Any = None,
) -> None:
    """Writes the codes of a block pair: float32, heads x 128 keys x 128 queries, and as operands.

    An operand has the codes of one group of 16 keys in rows of (head, key) and the operands' dtype.
    The code that reads out is the float32 one, the code that makes the value network the operand.
    `positions` are the positions of the first query and key; `segment_refs` end with the weights.
    `scale_ref`, if given, receives the factor that normalised each pair's score, 128 keys x 128
    queries.
    """
    chunk = LANES // 2
    for start in range(0, LANES, chunk):
        keys = slice(start, start + chunk)
        made, read, scale = codes_of_keys(p, q_ref, keys_ref, segment_refs, positions, keys)
        if scale_ref is not None:
            scale_ref[keys] = scale
        for head, a in enumerate(made):
            code_ref[head, keys] = read[head]
            for group in range(start // GROUP_KEYS, (start + chunk) // GROUP_KEYS):
                row = group * GROUP_KEYS - start
                operand = a[row : row + GROUP_KEYS].astype(p.dtype)
                operand_ref[group, p.head(head, GROUP_KEYS)] = operand


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
        mean_square = sum(s * s for s in s_SxT) * (1 / (p.true_heads * p.true_key_dim))
        scale *= lax.rsqrt(mean_square + RMS_HEAD_EPSILON)
    scale = _hide(p, scale, segment_refs, positions, keys.start)
    codes = [s * scale for s in s_SxT]
    if p.normalization in PAIR_NETWORKS:
        weights = weights_of(segment_refs[2 * p.has_segments :])
        return *codes_of_scores(p.normalization, p.true_heads, codes, scale > 0, weights), scale
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


def codes_of_group(p: Problem, operand_ref: Any, group: Any, tile: int) -> jax.Array:
    """The codes of a group of keys as an operand: rows (head, key), 128 a tile; 128 queries."""
    return operand_ref[group, pl.ds(tile * LANES, p.code_width)]


def operand_shape(p: Problem) -> tuple[int, int, int]:
    return GROUPS, p.heads * GROUP_KEYS, LANES


def codes_of_scores(
    normalization: str,
    true_heads: int,
    s_SxT: PerHead,
    visible_SxT: jax.Array,
    weights_Nx1xT: jax.Array | None,
) -> tuple[PerHead, PerHead]:
    """Each head's codes, of the scaled scores, to make a value network and to read it out.

    Heads that pad the others have 0.
    """
    made, read = _codes(normalization, jnp.stack(s_SxT[:true_heads]), visible_SxT, weights_Nx1xT)
    heads = len(s_SxT)
    return _per_head(made, heads), _per_head(read, heads)


def pull_back(
    normalization: str,
    true_heads: int,
    s_SxT: PerHead,
    visible_SxT: jax.Array,
    weights_Nx1xT: jax.Array | None,
    d_codes: tuple[PerHead, PerHead],
) -> tuple[PerHead, jax.Array | None]:
    """The gradient of each head's scaled scores, and that of the weights."""

    def codes(s_HxSxT: jax.Array, weights_Nx1xT: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        return _codes(normalization, s_HxSxT, visible_SxT, weights_Nx1xT)

    _, through = jax.vjp(codes, jnp.stack(s_SxT[:true_heads]), weights_Nx1xT)
    d_made, d_read = (jnp.stack(d[:true_heads]) for d in d_codes)
    ds_HxSxT, dw_Nx1xT = through((d_made, d_read))
    return _per_head(ds_HxSxT, len(s_SxT)), dw_Nx1xT


def _codes(
    normalization: str, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    codes: Codes = PAIR_NETWORKS[normalization].at(s_HxSxT, visible_SxT, weights)
    made, read = codes
    return made, made if read is None else read


def _per_head(x_HxSxT: jax.Array, heads: int) -> PerHead:
    zeros = [jnp.zeros_like(x_HxSxT[0])] * (heads - len(x_HxSxT))
    return [*x_HxSxT, *zeros]


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
            keys=pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
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
            along = sum(d * a for d, a in zip(da, codes, strict=True)) * (1 / p.true_heads)
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
        p, scale = self.p, self.scale[keys]
        s = [
            scale * matrix_product(self.keys[head, keys], self.q_ref[0, p.head(head, p.key_dim)])
            for head in range(p.heads)
        ]
        weights, d_codes = weights_of(self.weight_refs), (list(da_made), list(da_read))
        ds, dw = pull_back(p.normalization, p.true_heads, s, scale > 0, weights, d_codes)
        self._add_weights(query_block, dw)
        return ds

    def _add_weights(self, query_block: Any, dw_Nx1xT: jax.Array | None) -> None:
        columns = pl.ds(pl.multiple_of(query_block * LANES, LANES), LANES)
        for dw_ref in self.dw_refs:
            assert dw_Nx1xT is not None
            for row in range(self.p.weights):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]
