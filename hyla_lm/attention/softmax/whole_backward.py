"""Softmax attention backward on TPU: dq, dk and dv in one pass that recomputes the scores."""

from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.lanes import LANES, matrix_product
from hyla_lm.attention.softmax.whole_common import LOG2_E, Problem, Specs, block, write_hidden_once

Tile = tuple[int, int, int]  # head, block of keys, block of queries
Pair = tuple[jax.Array, jax.Array]


@partial(jax.jit, static_argnums=0)
def backward(p: Problem, *operands: jax.Array) -> list[jax.Array]:
    """dq, dk and dv from the operands and results of `forward`, and dy."""
    specs = Specs(p)
    of_values = specs.rows(p.value_dim, p.queries)
    call = pl.pallas_call(
        partial(_backward_kernel, p),
        grid=(p.batch, p.heads // p.heads_at_once),
        in_specs=[*specs.operands, of_values, specs.log_z, of_values],
        out_specs=specs.operands[:3],
        out_shape=[jax.ShapeDtypeStruct(x.shape, p.dtype) for x in operands[:3]],
        scratch_shapes=[
            pltpu.VMEM((p.keys, p.queries), jnp.float32),
            pltpu.VMEM((p.heads_at_once * p.key_dim, p.queries), jnp.float32),
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
    columns = [(head, keys) for head in range(p.heads_at_once) for keys in range(p.key_blocks)]
    tiles = [
        (head, keys, queries)
        for head, keys in columns
        for queries in range(p.query_blocks)
        if keys < p.key_blocks_seen(queries)
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
