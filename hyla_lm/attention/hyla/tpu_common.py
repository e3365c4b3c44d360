"""Parts shared by the forward and backward TPU kernels: problem, tiles and latent code.

Time lies on lanes (hyla_lm/attention/lanes.py). README.md draws the layout and counts its cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from hyla_lm.attention.hyla.tpu_pairs import codes_of_scores, weights_of
from hyla_lm.attention.lanes import LANES, matrix_product
from hyla_lm.attention.pairwise import PAIR_NETWORKS
from hyla_lm.attention.scores import RMS_HEAD_EPSILON

GROUP_KEYS = 16
GROUPS = LANES // GROUP_KEYS
OCTET = 8
OCTETS = LANES // OCTET


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
