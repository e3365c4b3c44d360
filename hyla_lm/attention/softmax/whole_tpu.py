"""Softmax attention on TPU by our own kernel, for rows of scores that fit on the chip.

Keys lie on sublanes and queries on lanes, so a row's maximum and sum are plain vector operations. A
tile is 128 keys by 128 queries. Matrix and vector units work on neighbouring tiles at a time: the
programs interleave the stages of both, and the compiler keeps that order.
"""

from collections.abc import Iterator
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.lanes import (
    LANES,
    Problem,
    fits_lanes,
    matrix_product,
    operand_rows,
    output_of_rows,
    problem_of,
    segment_rows,
)
from hyla_lm.attention.request import Request
from hyla_lm.attention.softmax.libraries import splash_supports

MAX_LENGTH = 2048
HIDDEN = -1e30  # added to the score of a pair that is not visible
NOTHING_SEEN = -1e29  # below every visible score and above every hidden one
LOG2_E = 1.4426950408889634
MAX_TILES = 80  # tiles of one program; its length and compile time grow with them
Tile = tuple[int, int, int]  # head, block of keys, block of queries
Pair = tuple[jax.Array, jax.Array]


def supports(request: Request) -> bool:
    """Whether the kernel can do a request. Longer rows are for splash."""
    length = max(request.q_BxTxHxK.shape[1], request.k_BxSxHxK.shape[1])
    return length <= MAX_LENGTH and fits_lanes(request) and splash_supports(request)


def heads_at_once(p: Problem) -> int:
    """Heads of one program: the most that divide all heads within MAX_TILES, at least one."""
    tiles = sum(key_blocks_seen(p, block) for block in range(p.query_blocks))
    fitting = [n for n in range(1, p.heads + 1) if p.heads % n == 0]
    return max([n for n in fitting if n * tiles <= MAX_TILES], default=1)


def key_blocks_seen(p: Problem, query_block: int) -> int:
    """The number of key blocks that a query block may see, at least one."""
    if not p.causal:
        return p.key_blocks
    last_query = p.q_offset + query_block * LANES + LANES - 1
    return min(max(last_query // LANES + 1, 1), p.key_blocks)


def block(index: int) -> slice:
    return slice(index * LANES, (index + 1) * LANES)


def head_rows(p: Problem, size: int, length: int) -> pl.BlockSpec:
    """Whole rows of the heads of one program, in the grid of (batch, group of heads)."""
    return pl.BlockSpec((1, heads_at_once(p) * size, length), lambda b, h: (b, h, 0))


def operand_specs(p: Problem) -> list[pl.BlockSpec]:
    """The blocks of q, k and v, and of the segments of queries and keys."""
    return [
        head_rows(p, p.key_dim, p.queries),
        head_rows(p, p.key_dim, p.keys),
        head_rows(p, p.value_dim, p.keys),
        *(pl.BlockSpec((1, 1, size), lambda b, h: (b, 0, 0)) for size in (p.queries, p.keys)),
    ]


def output_specs(p: Problem) -> list[pl.BlockSpec]:
    """The blocks of y and of each row's logarithm."""
    log_z = pl.BlockSpec((1, heads_at_once(p), 1, p.queries), lambda b, h: (b, h, 0, 0))
    return [head_rows(p, p.value_dim, p.queries), log_z]


def attend_whole(request: Request) -> jax.Array:
    """Softmax attention for a supported request, shape BxTxHxU."""
    p = problem_of(request)
    segments = segment_rows(request)
    return output_of_rows(_attend(p, *operand_rows(request, p), *segments), request, p)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(p: Problem, *operands: jax.Array) -> jax.Array:
    return forward(p, *operands)[0]


def _forward(p: Problem, *operands: jax.Array) -> tuple[jax.Array, tuple[Any, ...]]:
    y, log_z = forward(p, *operands)
    return y, (*operands, y, log_z)


def _backward(p: Problem, saved: tuple[Any, ...], dy_BxHUxT: jax.Array) -> tuple[Any, ...]:
    return (*backward(p, *saved, dy_BxHUxT), None, None)


_attend.defvjp(_forward, _backward)


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


@partial(jax.jit, static_argnums=0)  # traced and lowered once for all layers
def forward(
    p: Problem,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    q_segment_Bx1xT: jax.Array,
    k_segment_Bx1xS: jax.Array,
) -> list[jax.Array]:
    """y (BxHUxT), and the binary logarithm of each row's sum of exponentials (BxHx1xT)."""
    call = pl.pallas_call(
        partial(_forward_kernel, p),
        grid=(p.batch, p.heads // heads_at_once(p)),
        in_specs=operand_specs(p),
        out_specs=output_specs(p),
        out_shape=[
            jax.ShapeDtypeStruct((p.batch, p.heads * p.value_dim, p.queries), p.dtype),
            jax.ShapeDtypeStruct((p.batch, p.heads, 1, p.queries), jnp.float32),
        ],
        scratch_shapes=[
            pltpu.VMEM((p.keys, p.queries), jnp.float32),
            pltpu.VMEM((2, p.keys, LANES), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="softmax_forward",
    )
    return call(q_BxHKxT, k_BxHKxS, v_BxHUxS, q_segment_Bx1xT, k_segment_Bx1xS)


def _forward_kernel(
    p: Problem,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    q_segment_ref: Any,
    k_segment_ref: Any,
    y_ref: Any,
    log_z_ref: Any,
    hidden_ref: Any,
    s_ref: Any,
) -> None:
    """Visits the tiles row by row; computes the scores of the next row while it reads one out."""
    write_hidden_once(p, q_segment_ref, k_segment_ref, hidden_ref)
    rows = [
        (head, queries) for head in range(heads_at_once(p)) for queries in range(p.query_blocks)
    ]

    @cache
    def keys_SxK(head: int) -> jax.Array:
        return k_ref[0, p.key_rows(head)].T

    def make_scores(turn: int) -> Iterator[jax.Array]:
        """Writes a row's scores tile by tile; yields each query's largest score so far."""
        head, queries = rows[turn]
        q_KxT = q_ref[0, p.key_rows(head), block(queries)]
        largest = jnp.full((1, LANES), NOTHING_SEEN, jnp.float32)
        for keys in range(key_blocks_seen(p, queries)):
            s_SxT = matrix_product(keys_SxK(head)[block(keys)], q_KxT) * (p.scale * LOG2_E)
            s_SxT += hidden_ref[block(keys), block(queries)]
            s_ref[turn % 2, block(keys)] = s_SxT
            largest = jnp.maximum(largest, jnp.max(s_SxT, axis=0, keepdims=True))
            yield largest

    def read_out(turn: int, largest: jax.Array) -> Iterator[None]:
        """Sums a row's values by its scores tile by tile, and writes the result after the last."""
        head, queries = rows[turn]
        z_1xT, y_UxT = jnp.zeros((1, LANES)), jnp.zeros((p.value_dim, LANES))
        for keys in range(key_blocks_seen(p, queries)):
            weight_SxT = jnp.exp2(s_ref[turn % 2, block(keys)] - largest)
            z_1xT += jnp.sum(weight_SxT, axis=0, keepdims=True)
            v_UxS = v_ref[0, p.value_rows(head), block(keys)]
            y_UxT += matrix_product(v_UxS, weight_SxT.astype(p.dtype))
            yield
        saw_any = z_1xT > 0
        y_UxT *= jnp.where(saw_any, 1 / z_1xT, 0.0)
        y_ref[0, p.value_rows(head), block(queries)] = y_UxT.astype(p.dtype)
        log_z_ref[0, head, :, block(queries)] = jnp.where(saw_any, largest + jnp.log2(z_1xT), 0.0)

    *_, largest = make_scores(0)
    for turn in range(len(rows)):
        ahead = make_scores(turn + 1) if turn + 1 < len(rows) else iter(())
        made = [so_far for so_far, _ in zip_longest(ahead, read_out(turn, largest))]
        largest = next((x for x in reversed(made) if x is not None), largest)


@partial(jax.jit, static_argnums=0)
def backward(p: Problem, *operands: jax.Array) -> list[jax.Array]:
    """dq, dk and dv from the operands and results of `forward`, and dy."""
    call = pl.pallas_call(
        partial(_backward_kernel, p),
        grid=(p.batch, p.heads // heads_at_once(p)),
        in_specs=[*operand_specs(p), *output_specs(p), output_specs(p)[0]],
        out_specs=operand_specs(p)[:3],
        out_shape=[jax.ShapeDtypeStruct(x.shape, p.dtype) for x in operands[:3]],
        scratch_shapes=[
            pltpu.VMEM((p.keys, p.queries), jnp.float32),
            pltpu.VMEM((heads_at_once(p) * p.key_dim, p.queries), jnp.float32),
        ],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="softmax_backward",
    )
    return call(*operands)


def _backward_kernel(
    p: Problem,
    q_ref: Any,
    k_ref: Any,
    v_ref: Any,
    q_segment_ref: Any,
    k_segment_ref: Any,
    y_ref: Any,
    log_z_ref: Any,
    dy_ref: Any,
    dq_ref: Any,
    dk_ref: Any,
    dv_ref: Any,
    hidden_ref: Any,
    dq_sum_ref: Any,
) -> None:
    """Visits the tiles column by column; each goes through three stages, one turn apart."""
    write_hidden_once(p, q_segment_ref, k_segment_ref, hidden_ref)
    columns = [(head, keys) for head in range(heads_at_once(p)) for keys in range(p.key_blocks)]
    tiles = [
        (head, keys, queries)
        for head, keys in columns
        for queries in range(p.query_blocks)
        if keys < key_blocks_seen(p, queries)
    ]

    @cache
    def keys_SxK(head: int) -> jax.Array:
        return k_ref[0, p.key_rows(head)].T

    @cache
    def values_SxU(head: int) -> jax.Array:
        return v_ref[0, p.value_rows(head)].T

    @cache
    def read_1xT(head: int) -> jax.Array:
        """The sum over keys of a * da of each query, as y * dy summed over units."""
        y, dy = (ref[0, p.value_rows(head)].astype(jnp.float32) for ref in (y_ref, dy_ref))
        return jnp.sum(y * dy, axis=0, keepdims=True)

    def make(tile: Tile) -> Pair:
        head, keys, queries = tile
        q_KxT = q_ref[0, p.key_rows(head), block(queries)]
        dy_UxT = dy_ref[0, p.value_rows(head), block(queries)]
        s_SxT = matrix_product(keys_SxK(head)[block(keys)], q_KxT)
        return s_SxT, matrix_product(values_SxU(head)[block(keys)], dy_UxT)

    def differentiate(tile: Tile, s_SxT: jax.Array, da_SxT: jax.Array) -> Pair:
        head, keys, queries = tile
        shift = hidden_ref[block(keys), block(queries)] - log_z_ref[0, head, :, block(queries)]
        a_SxT = jnp.exp2(s_SxT * (p.scale * LOG2_E) + shift)
        ds_SxT = a_SxT * (da_SxT - read_1xT(head)[:, block(queries)])
        return a_SxT.astype(p.dtype), ds_SxT.astype(p.dtype)

    def add(tile: Tile, a_SxT: jax.Array, ds_SxT: jax.Array, sums: Pair) -> Pair:
        """Adds a tile to dq and to the sums of its column, dk and dv, which it returns."""
        head, keys, queries = tile
        q_KxT = q_ref[0, p.key_rows(head), block(queries)]
        k_KxS = k_ref[0, p.key_rows(head), block(keys)]
        dy_UxT = dy_ref[0, p.value_rows(head), block(queries)]
        dk, dv = sums
        dk += matrix_product(q_KxT, ds_SxT, (1, 1))
        dv += matrix_product(dy_UxT, a_SxT, (1, 1))
        dq_sum_ref[p.key_rows(head), block(queries)] += matrix_product(k_KxS, ds_SxT)
        return dk, dv

    def write(column: tuple[int, int], sums: Pair) -> None:
        head, keys = column
        dk, dv = sums
        dk_ref[0, p.key_rows(head), block(keys)] = (dk * p.scale).astype(p.dtype)
        dv_ref[0, p.value_rows(head), block(keys)] = dv.astype(p.dtype)

    zeros = jnp.zeros((p.key_dim, LANES)), jnp.zeros((p.value_dim, LANES))
    unseen = [column for column in columns if column not in {tile[:2] for tile in tiles}]
    for column in unseen:
        write(column, zeros)
    dq_sum_ref[...] = jnp.zeros_like(dq_sum_ref)
    made: dict[int, Pair] = {}
    differentiated: dict[int, Pair] = {}
    sums = zeros
    for turn in range(len(tiles) + 2):
        first, second, third = turn, turn - 1, turn - 2
        if first < len(tiles):
            made[first] = make(tiles[first])
        if third >= 0:
            column = tiles[third][:2]
            sums = add(tiles[third], *differentiated.pop(third), sums)
            if second == len(tiles) or tiles[second][:2] != column:
                write(column, sums)
                sums = zeros
        if 0 <= second < len(tiles):
            differentiated[second] = differentiate(tiles[second], *made.pop(second))
    dq_ref[0] = (dq_sum_ref[...] * p.scale).astype(p.dtype)
