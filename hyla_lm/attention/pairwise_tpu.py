"""Pair networks with linear values on TPU: a skeleton that traces the function of a tile.

Layout as in lanes.py. Forward visits a query block's key blocks and sums y; backward visits a key
block's query blocks, makes the codes again and pulls their gradient back by `jax.vjp`. Key blocks
have 128 keys, or all if the network wants whole rows.
"""

from functools import partial
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
    weight_rows,
    weights_of,
)
from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import PAIR_NETWORKS

MAX_LENGTH = 2048
MAX_WHOLE_ROWS = 1024
MAX_HEADS = 16


def supports(request: Request) -> bool:
    """Whether the kernel can do a request."""
    network = request.spec.pair_network
    if network is None or request.spec.value_network != "linear":
        return False
    length = max(request.q_BxTxHxK.shape[1], request.k_BxSxHxK.shape[1])
    fits = length <= (MAX_WHOLE_ROWS if network.whole_rows else MAX_LENGTH)
    has_few_heads = request.q_BxTxHxK.shape[2] <= MAX_HEADS
    return fits and has_few_heads and fits_lanes(request) and request.q_offset is not None


def attend_pairs(request: Request) -> jax.Array:
    """Attention by a pair network for a supported request, shape BxTxHxU."""
    p = problem_of(request)
    segments, weights = segment_rows(request), weight_rows(request)
    y_BxHUxT = _attend(p, segments, *operand_rows(request, p), weights)
    return output_of_rows(y_BxHUxT, request, p)


def block_keys(p: Problem) -> int:
    return p.keys if PAIR_NETWORKS[p.normalization].whole_rows else LANES


def sees(p: Problem, query_block: Any, key_block: Any) -> Any:
    """Whether the last query of a block may see the first key of another."""
    last = p.q_offset + query_block * LANES + LANES - 1
    return not p.causal or key_block * block_keys(p) <= last


def scores(p: Problem, q_ref: Any, k_ref: Any) -> jax.Array:
    """The scaled scores of all heads, H x keys x 128 queries in float32."""
    rows = [p.key_rows(head) for head in range(p.heads)]
    return jnp.stack([matrix_product(k_ref[0, row].T, q_ref[0, row]) * p.scale for row in rows])


def visible_pairs(p: Problem, q_segment_ref: Any, k_segment_ref: Any, i: Any, j: Any) -> jax.Array:
    """Which of the block's keys each query sees, keys x 128 queries."""
    shape = (block_keys(p), LANES)
    k_segment_TxS = jnp.broadcast_to(k_segment_ref[0], shape[::-1])
    seen_SxT = jnp.broadcast_to(q_segment_ref[0], shape) == k_segment_TxS.T
    if p.causal:
        key = lax.broadcasted_iota(jnp.int32, shape, 0) + j * block_keys(p)
        query = lax.broadcasted_iota(jnp.int32, shape, 1) + (i * LANES + p.q_offset)
        seen_SxT &= key <= query
    return seen_SxT


def codes(
    p: Problem, visible_SxT: jax.Array, s_HxSxT: jax.Array, weights_Nx1xT: jax.Array | None
) -> jax.Array:
    """The codes that weigh the values."""
    made, read = PAIR_NETWORKS[p.normalization].at(s_HxSxT, visible_SxT, weights_Nx1xT)
    return made if read is None else read


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(p: Problem, segments: Any, q: Any, k: Any, v: Any, weights: Any) -> jax.Array:
    return _call(p, segments, q, k, v, weights, None)[0]


def _forward(p: Problem, *operands: Any) -> tuple[jax.Array, Any]:
    return _attend(p, *operands), operands


def _backward(p: Problem, operands: Any, dy_BxHUxT: jax.Array) -> tuple[Any, ...]:
    segments, q, k, v, weights = operands
    dq, dk, dv, *dw = _call(p, segments, q, k, v, weights, dy_BxHUxT)
    return [None] * len(segments), dq.astype(q.dtype), dk, dv, tuple(dw)


_attend.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=0)  # traced and lowered once for all layers
def _call(
    p: Problem, segments: Any, q: Any, k: Any, v: Any, weights: Any, dy: jax.Array | None
) -> list[jax.Array]:
    """y, or from dy the gradients dq in float32, dk, dv and those of the weights."""
    batch, key_rows, q_length = q.shape
    value_rows, k_length = v.shape[1:]
    query_blocks, key_blocks = q_length // LANES, k_length // block_keys(p)

    def block(rows: int, of_keys: bool) -> pl.BlockSpec:
        def place(b: Any, major: Any, minor: Any) -> tuple[Any, ...]:
            return b, 0, minor if of_keys == (dy is None) else major

        return pl.BlockSpec((1, rows, block_keys(p) if of_keys else LANES), place)

    def whole(rows: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, rows, q_length), lambda b, major, minor: (b, 0, 0))

    in_specs = [block(1, False), block(1, True), block(key_rows, False), block(key_rows, True)]
    in_specs += [block(value_rows, True), *(block(w.shape[1], False) for w in weights)]
    operands = [*segments, q, k, v, *weights]
    if dy is None:
        grid, kernel = (batch, query_blocks, key_blocks), _forward_kernel
        out_specs = [block(value_rows, False)]
        out = [jax.ShapeDtypeStruct((batch, value_rows, q_length), p.dtype)]
        scratch = [pltpu.VMEM((value_rows, LANES), jnp.float32)]
    else:
        grid, kernel = (batch, key_blocks, query_blocks), _backward_kernel
        operands, in_specs = [*operands, dy], [*in_specs, block(value_rows, False)]
        out_specs = [whole(key_rows), block(key_rows, True), block(value_rows, True)]
        out_specs += [whole(w.shape[1]) for w in weights]
        out = [jax.ShapeDtypeStruct(q.shape, jnp.float32)]
        out += [jax.ShapeDtypeStruct(x.shape, p.dtype) for x in (k, v)]
        out += [jax.ShapeDtypeStruct(w.shape, jnp.float32) for w in weights]
        scratch = [pltpu.VMEM((r, block_keys(p)), jnp.float32) for r in (key_rows, value_rows)]
    return pl.pallas_call(
        partial(kernel, p, bool(weights)),
        grid=grid,
        in_specs=in_specs,
        out_specs=out_specs,
        out_shape=out,
        scratch_shapes=scratch,
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="pairs_forward" if dy is None else "pairs_backward",
    )(*operands)


def _forward_kernel(p: Problem, has_weights: bool, *refs: Any) -> None:
    q_segment_ref, k_segment_ref, q_ref, k_ref, v_ref = refs[:5]
    weight_refs, (y_ref, sum_ref) = refs[5 : 5 + has_weights], refs[-2:]
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(sees(p, i, j))
    def _() -> None:
        visible = visible_pairs(p, q_segment_ref, k_segment_ref, i, j)
        a_HxSxT = codes(p, visible, scores(p, q_ref, k_ref), weights_of(weight_refs))
        for head in range(p.heads):
            rows = p.value_rows(head)
            sum_ref[rows] += matrix_product(v_ref[0, rows], a_HxSxT[head].astype(p.dtype))

    @pl.when(j == pl.num_programs(2) - 1)
    def _() -> None:
        y_ref[0] = sum_ref[...].astype(y_ref.dtype)


def _backward_kernel(p: Problem, has_weights: bool, *refs: Any) -> None:
    q_segment_ref, k_segment_ref, q_ref, k_ref, v_ref = refs[:5]
    weight_refs, dy_ref = refs[5 : 5 + has_weights], refs[5 + has_weights]
    dq_ref, dk_ref, dv_ref, *dw_refs = refs[6 + has_weights : -2]
    dk_sum, dv_sum = refs[-2:]
    j, i = pl.program_id(1), pl.program_id(2)
    columns = pl.ds(pl.multiple_of(i * LANES, LANES), LANES)

    @pl.when((j == 0) & (i == 0))
    def _() -> None:
        for total in (dq_ref, *dw_refs):
            total[...] = jnp.zeros_like(total)

    @pl.when(i == 0)
    def _() -> None:
        dk_sum[...], dv_sum[...] = jnp.zeros_like(dk_sum), jnp.zeros_like(dv_sum)

    @pl.when(sees(p, i, j))
    def _() -> None:
        visible = visible_pairs(p, q_segment_ref, k_segment_ref, i, j)
        s_HxSxT, weights = scores(p, q_ref, k_ref), weights_of(weight_refs)
        a_HxSxT, pull_back = jax.vjp(partial(codes, p, visible), s_HxSxT, weights)
        da = []
        for head in range(p.heads):
            rows = p.value_rows(head)
            dv_sum[rows] += matrix_product(dy_ref[0, rows], a_HxSxT[head].astype(p.dtype), (1, 1))
            da.append(matrix_product(v_ref[0, rows].T, dy_ref[0, rows]))
        ds_HxSxT, dw_Nx1xT = pull_back(jnp.stack(da))
        for head in range(p.heads):
            rows, ds = p.key_rows(head), (ds_HxSxT[head] * p.scale).astype(p.dtype)
            dq_ref[0, rows, columns] += matrix_product(k_ref[0, rows], ds)
            dk_sum[rows] += matrix_product(q_ref[0, rows], ds, (1, 1))
        for dw_ref in dw_refs:
            for row in range(dw_ref.shape[1]):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]

    @pl.when(i == pl.num_programs(2) - 1)
    def _() -> None:
        dk_ref[0], dv_ref[0] = dk_sum[...].astype(dk_ref.dtype), dv_sum[...].astype(dv_ref.dtype)
