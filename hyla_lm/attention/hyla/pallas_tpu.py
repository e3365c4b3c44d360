"""HYLA on TPU without T x T arrays: layout, padding and gradient around the Pallas kernels.

Backward, dq, dk and dv come of one pass over the block pairs, from q, k, v and dy alone: the codes
of each pair are computed again. README.md has the maths, the blocking and the cost counted by hand.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.hyla.backward import PairGradient
from hyla_lm.attention.hyla.codes import (
    HiddenLayers,
    ScoresGradient,
    padded_heads,
    power_of_two,
)
from hyla_lm.attention.hyla.forward import PairForward
from hyla_lm.attention.hyla.grids import BackwardMaps, ForwardMaps, ForwardStep, operand_specs
from hyla_lm.attention.lanes import (
    LANES,
    Problem,
    fits_lanes,
    operand_rows,
    output_of_rows,
    problem_of,
    time_row,
    weight_rows,
)
from hyla_lm.attention.request import Request

MAX_HEADS = 32
MAX_FLOAT32_WIDTH = 2048
MIN_UNITS = 32
SPAN_HEADS = 64  # heads of all query blocks that share a block of keys
DQ_BYTES = 16 * 2**20


def supports(request: Request) -> bool:
    """Whether the kernel can do a request."""
    spec, (heads, value_dim) = request.spec, request.v_BxSxHxU.shape[2:]
    has_units = (spec.value_network, spec.value_depth) == ("hypernetwork", 1)
    if heads > MAX_HEADS or not has_units or spec.normalizes_over_keys:
        return False
    is_narrow = request.dtype == jnp.bfloat16 or heads * value_dim <= MAX_FLOAT32_WIDTH
    return fits_lanes(request) and is_narrow


def attend_pallas(request: Request) -> jax.Array:
    """HYLA for a supported request, shape BxTxHxU."""
    p = _problem(request)
    offset = () if p.q_offset is not None else (request.q_position_T[:1].astype(jnp.int32),)
    segments = tuple(map(time_row, request.segments or ()))
    operands = operand_rows(request, p)
    return output_of_rows(_attend(p, *operands, segments, offset, weight_rows(request)), request, p)


def _problem(request: Request) -> Problem:
    """The problem, with units so that sets of queries fill the lanes, and their heads fit."""
    p = problem_of(request)
    units = max(MIN_UNITS, power_of_two(p.value_dim), power_of_two(p.heads))
    return replace(p, value_dim=units)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    p: Problem,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    segments: tuple[jax.Array, ...],
    q_offset: tuple[jax.Array, ...],
    weights: tuple[jax.Array, ...],
) -> jax.Array:
    return forward(p, q_BxHKxT, k_BxHKxS, v_BxHUxS, (*segments, *weights), q_offset)


def _forward(p: Problem, *operands: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    return _attend(p, *operands), operands


def _backward(p: Problem, operands: tuple[Any, ...], dy_BxHUxT: jax.Array) -> tuple[Any, ...]:
    """The gradients, in spans of queries whose dq fits on the chip.

    A span waits until the one before is added up. So its dk and dv are all that a row needs beside
    their sums, however many spans it has.
    """
    q, k, v, segments, q_offset, weights = operands
    of_queries, found = (q, dy_BxHUxT, *segments[:1], *weights), []
    total: tuple[jax.Array, ...] = ()
    for first, part in _spans(p):
        queries = slice(first * LANES, (first + part.query_blocks) * LANES)
        keys = slice(0, part.key_blocks * LANES)
        columns = tuple(rows[:, :, queries] for rows in of_queries)
        if total:
            columns, total = jax.lax.optimization_barrier((columns, total))
        q_part, dy_part, *rest = columns
        segments_part = (*rest[: p.has_segments], *(rows[:, :, keys] for rows in segments[1:]))
        dq, dk, dv, *dw = backward(
            part,
            q_part,
            k[:, :, keys],
            v[:, :, keys],
            dy_part,
            (*segments_part, *rest[p.has_segments :]),
            tuple(offset + first * LANES for offset in q_offset),
            p.dtype if part.query_blocks == p.query_blocks else jnp.float32,
        )
        total = tuple(map(_add, total, (dk, dv))) if total else (dk, dv)
        found.append((dq, *dw))
    dq, *dw = (jnp.concatenate(parts, axis=2) for parts in zip(*found, strict=True))
    dk, dv = (_widen(x.astype(p.dtype), p.key_blocks * LANES) for x in total)
    return dq, dk, dv, tuple(None for _ in segments), tuple(None for _ in q_offset), tuple(dw)


def _spans(p: Problem) -> Iterator[tuple[int, Problem]]:
    """The first query block of each span, and its problem with the keys that it may see."""
    span = backward_query_blocks(p)
    for first in range(0, p.query_blocks, span):
        blocks, keys = min(span, p.query_blocks - first), p.key_blocks
        offset = None if p.q_offset is None else p.q_offset + first * LANES
        if p.causal and offset is not None:
            keys = min(keys, pl.cdiv(offset, LANES) + blocks)
        yield first, replace(p, query_blocks=blocks, key_blocks=keys, q_offset=offset)


def _add(total: jax.Array, part: jax.Array) -> jax.Array:
    """A sum over the keys of earlier spans, and the part of a span that sees more of them."""
    return _widen(total, part.shape[2]) + part


def _widen(x: jax.Array, columns: int) -> jax.Array:
    return jnp.pad(x, [(0, 0), (0, 0), (0, columns - x.shape[2])])


_attend.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=0)  # traced and lowered once for all layers
def forward(
    p: Problem,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    segments: tuple[jax.Array, ...],
    q_offset: tuple[jax.Array, ...],
) -> jax.Array:
    """y, shape B x HU x T; segments are (Bx1xT, Bx1xS) or empty, then weights BxNxT."""
    span = min(SPAN_HEADS // padded_heads(p), p.query_blocks)
    maps, width = ForwardMaps(p, span), p.heads * p.value_dim
    call = pl.pallas_call(
        partial(_forward_kernel, p, maps),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(q_offset),
            grid=maps.grid,
            in_specs=operand_specs(p, maps.of_queries, maps.of_keys),
            out_specs=pl.BlockSpec((1, width, maps.span * LANES), maps.of_output),
            scratch_shapes=[
                dict(layers=HiddenLayers.scratch(p, 2), pair=PairForward.scratch(p, maps.span))
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((p.batch, width, p.query_blocks * LANES), p.dtype),
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="hyla_forward",
    )
    return call(*q_offset, q_BxHKxT, k_BxHKxS, v_BxHUxS, *segments)


def _forward_kernel(p: Problem, maps: ForwardMaps, *refs: Any) -> None:
    prefetched, refs = refs[: p.q_offset is None], refs[p.q_offset is None :]
    q_ref, k_ref, v_ref, *segment_refs, y_ref, scratch = refs
    m, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
    offset, block = maps.offset(prefetched), m * maps.span + i
    last_block = maps.last_query_block(m)
    starts = (j == 0) & (i == 0)
    ends = (block == last_block) & (j == maps.last_key_block(m, offset))
    pairs = PairForward(p, HiddenLayers(p, **scratch["layers"]), **scratch["pair"])

    @pl.when(starts)
    def _() -> None:
        pairs.sums[...] = jnp.zeros_like(pairs.sums)
        for index in range(pairs.last.shape[0]):
            pairs.last[index] = 0

    @pl.when((block <= last_block) & p.sees(block, j, offset))
    def _() -> None:
        step = ForwardStep(maps, m, j, i, offset, block, starts, ends)
        pairs.visit(step, q_ref, k_ref, v_ref, segment_refs)

    @pl.when(ends)
    def _() -> None:
        for query_block in range(maps.span):
            pairs.write_y(query_block, y_ref)


def backward_query_blocks(p: Problem) -> int:
    """The number of query blocks a call can take, so that all of their dq stays in VMEM."""
    bytes_per_block = p.heads * p.key_dim * LANES * (4 + 2 * p.dtype.itemsize)
    return min(p.query_blocks, max(1, DQ_BYTES // bytes_per_block))


@partial(jax.jit, static_argnums=(0, 7))  # traced and lowered once for all layers
def backward(
    p: Problem,
    q_BxHKxT: jax.Array,
    k_BxHKxS: jax.Array,
    v_BxHUxS: jax.Array,
    dy_BxHUxT: jax.Array,
    segments: tuple[jax.Array, ...],
    q_offset: tuple[jax.Array, ...],
    key_dtype: jnp.dtype,
) -> list[jax.Array]:
    """dq (BxHKxT), and dk and dv (BxHKxS, BxHUxS) in `key_dtype`."""
    maps = BackwardMaps(p)
    key_rows, value_rows = p.heads * p.key_dim, p.heads * p.value_dim
    specs = operand_specs(p, maps.of_queries, maps.of_keys)
    specs.insert(3, pl.BlockSpec((1, value_rows, LANES), maps.of_queries))
    weights_shape = (p.batch, p.weights, p.query_blocks * LANES)
    call = pl.pallas_call(
        partial(_backward_kernel, p, maps),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(q_offset),
            grid=(p.batch, p.key_blocks, p.query_blocks),
            in_specs=specs,
            out_specs=[
                pl.BlockSpec((1, key_rows, p.query_blocks * LANES), lambda b, j, i, *_: (b, 0, 0)),
                pl.BlockSpec((1, key_rows, LANES), lambda b, j, i, *_: (b, 0, j)),
                pl.BlockSpec((1, value_rows, LANES), lambda b, j, i, *_: (b, 0, j)),
                pl.BlockSpec((1, *weights_shape[1:]), lambda b, j, i, *_: (b, 0, 0)),
            ][: 4 if p.weights else 3],
            scratch_shapes=[
                dict(
                    layers=HiddenLayers.scratch(p, 1),
                    scores=ScoresGradient.scratch(p),
                    pair=PairGradient.scratch(p),
                )
            ],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((p.batch, key_rows, p.query_blocks * LANES), p.dtype),
            jax.ShapeDtypeStruct((p.batch, key_rows, p.key_blocks * LANES), key_dtype),
            jax.ShapeDtypeStruct((p.batch, value_rows, p.key_blocks * LANES), key_dtype),
            jax.ShapeDtypeStruct(weights_shape, jnp.float32),
        ][: 4 if p.weights else 3],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=chip_in_use().kernel_vmem_bytes),
        name="hyla_backward",
    )
    return call(*q_offset, q_BxHKxT, k_BxHKxS, v_BxHUxS, dy_BxHUxT, *segments)


def _backward_kernel(p: Problem, maps: BackwardMaps, *refs: Any) -> None:
    prefetched, refs = refs[: p.q_offset is None], refs[p.q_offset is None :]
    outputs = 4 if p.weights else 3
    q_ref, k_ref, v_ref, dy_ref, *segment_refs = refs[: -outputs - 1]
    dq_ref, dk_ref, dv_ref, *dw_refs, scratch = refs[-outputs - 1 :]
    weight_refs = segment_refs[2 * p.has_segments :]
    j, i = pl.program_id(1), pl.program_id(2)
    offset = maps.offset(prefetched)
    layers = HiddenLayers(p, **scratch["layers"])
    scores = ScoresGradient(p, q_ref, k_ref, weight_refs, dw_refs, layers.keys, **scratch["scores"])
    pair = PairGradient(p, layers, scores, **scratch["pair"])

    @pl.when((j == 0) & (i == 0))
    def _() -> None:
        for total in (scores.dq, scores.dk, pair.dv, *dw_refs):
            total[...] = jnp.zeros_like(total)

    @pl.when(p.sees(i, j, offset))
    def _() -> None:
        starts_keys = i == p.first_query_block(j, offset)
        pl.when(starts_keys)(lambda: layers.write_keys(k_ref, v_ref))
        positions = offset + i * LANES, j * LANES
        layers.write_codes(q_ref, segment_refs, positions, scores.scale)
        pair.differentiate(i, dy_ref)

    @pl.when(i == p.query_blocks - 1)
    def _() -> None:
        dk_ref[0] = scores.dk[...].astype(dk_ref.dtype)
        scores.dk[...] = jnp.zeros_like(scores.dk)
        pair.write_dv(dv_ref)

    @pl.when((j == p.key_blocks - 1) & (i == p.query_blocks - 1))
    def _() -> None:
        for block in range(p.query_blocks):
            dq_ref[0, :, pl.ds(block * LANES, LANES)] = scores.dq[block].astype(dq_ref.dtype)
