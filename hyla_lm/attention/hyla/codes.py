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

from hyla_lm.attention.lanes import LANES, Problem, matrix_product, weights_of
from hyla_lm.attention.spec import PAIR_NETWORKS, RMS_HEAD_EPSILON

GROUP_KEYS = 16
GROUPS = LANES // GROUP_KEYS
OCTET = 8
OCTETS = LANES // OCTET
PerHead = Sequence[jax.Array]


def words_per_key(p: Problem) -> int:
    """32-bit rows of one key's value network."""
    return p.value_dim * p.dtype.itemsize // 4


def code_tiles(p: Problem) -> int:
    """Matrix units that the codes of one group fill."""
    return pl.cdiv(p.heads * GROUP_KEYS, LANES)


def code_width(p: Problem) -> int:
    return min(p.heads * GROUP_KEYS, LANES)


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
        weights, visible = weights_of(segment_refs[2 * p.has_segments :]), scale > 0
        made, read = _codes_of_tile(p, jnp.stack(codes[: p.true_heads]), visible, weights)
        return _per_head(p, made), _per_head(p, read), scale
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
    return operand_ref[group, pl.ds(tile * LANES, code_width(p))]


def operand_shape(p: Problem) -> tuple[int, int, int]:
    return GROUPS, p.heads * GROUP_KEYS, LANES


def _codes_of_tile(
    p: Problem, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The codes of scaled scores that make a value network, and those that read it out."""
    made, read = PAIR_NETWORKS[p.normalization].at(s_HxSxT, visible_SxT, weights)
    return made, made if read is None else read


def _per_head(p: Problem, x_HxSxT: jax.Array) -> PerHead:
    """Each true head's array, and zeros for the heads that pad them."""
    zeros = [jnp.zeros_like(x_HxSxT[0])] * (p.heads - p.true_heads)
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
        """The gradient of each head's scaled scores; adds that of the weights."""
        p, scale = self.p, self.scale[keys]
        s = [
            scale * matrix_product(self.keys[head, keys], self.q_ref[0, p.head(head, p.key_dim)])
            for head in range(p.heads)
        ]
        weights, visible = weights_of(self.weight_refs), scale > 0
        _, through = jax.vjp(
            lambda s_HxSxT, weights: _codes_of_tile(p, s_HxSxT, visible, weights),
            jnp.stack(s[: p.true_heads]),
            weights,
        )
        ds_HxSxT, dw_Nx1xT = through(
            tuple(jnp.stack(d[: p.true_heads]) for d in (da_made, da_read))
        )
        ds = _per_head(p, ds_HxSxT)
        columns = pl.ds(pl.multiple_of(query_block * LANES, LANES), LANES)
        for dw_ref in self.dw_refs:
            for row in range(p.weights):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]
        return ds
