"""HYLA backward on TPU: dq, dk and dv in one pass over the block pairs, from q, k, v and dy alone.

The codes of each pair are recomputed. The gradient of a pair has two forms, with units and with
queries on lanes: tpu_gradient_units.py, which is faster, and tpu_gradient_queries.py. Both end in
tpu_gradient_scores.py.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.hyla.tpu_common import Problem
from hyla_lm.attention.hyla.tpu_gradient_queries import QueriesGradient
from hyla_lm.attention.hyla.tpu_gradient_scores import ScoresGradient
from hyla_lm.attention.hyla.tpu_gradient_units import UnitsGradient
from hyla_lm.attention.hyla.tpu_sets import fits
from hyla_lm.attention.lanes import LANES

DQ_BYTES = 16 * 2**20


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
    maps = _IndexMaps(p)
    key_rows, value_rows = p.heads * p.key_dim, p.heads * p.value_dim
    specs = [
        pl.BlockSpec((1, key_rows, LANES), maps.of_queries),
        pl.BlockSpec((1, key_rows, LANES), maps.of_keys),
        pl.BlockSpec((1, value_rows, LANES), maps.of_keys),
        pl.BlockSpec((1, value_rows, LANES), maps.of_queries),
        pl.BlockSpec((1, 1, LANES), maps.of_queries),
        pl.BlockSpec((1, 1, LANES), maps.of_keys),
    ]
    of_weights = [pl.BlockSpec((1, p.weights, LANES), maps.of_queries)]
    weights_shape = (p.batch, p.weights, p.query_blocks * LANES)
    gradient = UnitsGradient if fits(p) else QueriesGradient
    call = pl.pallas_call(
        partial(_kernel, p, maps, gradient),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(q_offset),
            grid=(p.batch, p.key_blocks, p.query_blocks),
            in_specs=specs[: 4 + 2 * p.has_segments] + of_weights[: p.weights],
            out_specs=[
                pl.BlockSpec((1, key_rows, p.query_blocks * LANES), lambda b, j, i, *_: (b, 0, 0)),
                pl.BlockSpec((1, key_rows, LANES), lambda b, j, i, *_: (b, 0, j)),
                pl.BlockSpec((1, value_rows, LANES), lambda b, j, i, *_: (b, 0, j)),
                pl.BlockSpec((1, *weights_shape[1:]), lambda b, j, i, *_: (b, 0, 0)),
            ][: 4 if p.weights else 3],
            scratch_shapes=[
                dict(scores=ScoresGradient.scratch(p), pair=gradient.scratch(p)),
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


@dataclass(frozen=True)
class _IndexMaps:
    """Index maps of the grid (batch, key block, query block); fully masked steps fetch nothing."""

    p: Problem

    def offset(self, prefetched: tuple[Any, ...]) -> Any:
        return prefetched[0][0] if prefetched else self.p.q_offset

    def of_queries(self, b: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        first = self.p.first_query_block(j, self.offset(prefetched))
        return b, 0, jnp.minimum(jnp.maximum(i, first), self.p.query_blocks - 1)

    def of_keys(self, b: Any, j: Any, i: Any, *prefetched: Any) -> tuple[Any, ...]:
        return b, 0, j


def _kernel(
    p: Problem, maps: _IndexMaps, gradient: type[UnitsGradient | QueriesGradient], *refs: Any
) -> None:
    prefetched, refs = refs[: p.q_offset is None], refs[p.q_offset is None :]
    outputs = 4 if p.weights else 3
    q_ref, k_ref, v_ref, dy_ref, *segment_refs = refs[: -outputs - 1]
    dq_ref, dk_ref, dv_ref, *dw_refs, scratch = refs[-outputs - 1 :]
    weight_refs = segment_refs[2 * p.has_segments :]
    j, i = pl.program_id(1), pl.program_id(2)
    offset = maps.offset(prefetched)
    scores = ScoresGradient(p, q_ref, k_ref, weight_refs, dw_refs, **scratch["scores"])
    pair = gradient(p, scores, **scratch["pair"])

    @pl.when((j == 0) & (i == 0))
    def _() -> None:
        for total in (scores.dq, scores.dk, pair.dv, *dw_refs):
            total[...] = jnp.zeros_like(total)

    @pl.when(p.sees(i, j, offset))
    def _() -> None:
        starts_keys = i == p.first_query_block(j, offset)
        pair.prepare(starts_keys, v_ref, segment_refs, (offset + i * LANES, j * LANES))
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
