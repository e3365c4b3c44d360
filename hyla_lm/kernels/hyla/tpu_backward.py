"""HYLA backward on TPU: dq, dk and dv in one pass over the block pairs, from q, k, v and dy alone.

The codes of each pair are recomputed. Then, 8 keys at a time, the vector unit computes what depends
on the query: dz, and the part of da through the readout of y. Meanwhile the matrix units compute
what depends on the key: x of the next keys, and of the last ones dv and the part of da through x.
At the end da goes back through the normalisation to dq and dk.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.kernels.chips import chip_in_use
from hyla_lm.kernels.hyla.tpu_common import (
    OCTET,
    OCTETS,
    Problem,
    codes_of_group,
    operand_shape,
    write_codes,
    write_keys,
)
from hyla_lm.kernels.hyla.tpu_networks import (
    network_shape,
    read_networks,
    write_networks_by_unit,
    write_weights,
)
from hyla_lm.kernels.hyla.tpu_pairs import pull_back, weights_of
from hyla_lm.kernels.lanes import LANES, matrix_product
from hyla_lm.kernels.pairwise import PAIR_NETWORKS
from hyla_lm.kernels.spec import ACTIVATIONS

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
    pairs = (p.heads, LANES, LANES)
    rows = OCTET * p.value_dim
    call = pl.pallas_call(
        partial(_kernel, p, maps),
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
                dict(
                    keys=pltpu.VMEM((p.heads, LANES, p.key_dim), p.dtype),
                    network=pltpu.VMEM(network_shape(p), jnp.int32),
                    weights=pltpu.VMEM((OCTETS, p.heads * OCTET, rows), p.dtype),
                    mixed=pltpu.VMEM((p.value_dim, LANES), jnp.float32),
                    dy=pltpu.VMEM((value_rows, LANES), jnp.float32),
                    code=pltpu.VMEM(pairs, jnp.float32),
                    operand=pltpu.VMEM(operand_shape(p), p.dtype),
                    scale=pltpu.VMEM((LANES, LANES), jnp.float32),
                    x=[pltpu.VMEM((rows, LANES), jnp.float32)] * 2,
                    dx=[pltpu.VMEM((rows, LANES), p.dtype)] * 2,
                    da_read=pltpu.VMEM(pairs, jnp.float32),
                    da_made=pltpu.VMEM((OCTETS, p.heads * OCTET, LANES), jnp.float32),
                    ds=pltpu.VMEM(pairs, p.dtype),
                    dq=pltpu.VMEM((p.query_blocks, key_rows, LANES), jnp.float32),
                    dk=pltpu.VMEM((key_rows, LANES), jnp.float32),
                    dv=pltpu.VMEM((p.code_tiles, OCTETS, rows, p.code_width), jnp.float32),
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


def _kernel(p: Problem, maps: _IndexMaps, *refs: Any) -> None:
    prefetched, refs = refs[: p.q_offset is None], refs[p.q_offset is None :]
    outputs = 4 if p.weights else 3
    q_ref, k_ref, v_ref, dy_ref, *segment_refs = refs[: -outputs - 1]
    dq_ref, dk_ref, dv_ref, *dw_refs, scratch = refs[-outputs - 1 :]
    weight_refs = segment_refs[2 * p.has_segments :]
    j, i = pl.program_id(1), pl.program_id(2)
    offset = maps.offset(prefetched)
    pair = _PairGradient(p, q_ref, k_ref, weight_refs, dw_refs, **scratch)

    @pl.when((j == 0) & (i == 0))
    def _() -> None:
        for total in (pair.dq, pair.dk, pair.dv, *dw_refs):
            total[...] = jnp.zeros_like(total)

    @pl.when(p.sees(i, j, offset))
    def _() -> None:
        write = partial(
            write_codes,
            p,
            q_ref,
            pair.keys,
            segment_refs,
            (offset + i * LANES, j * LANES),
            pair.code,
            pair.operand,
            pair.scale,
        )

        @pl.when(i == p.first_query_block(j, offset))
        def _() -> None:
            write_keys(p, k_ref, pair.keys)
            write()
            write_networks_by_unit(p, v_ref, pair.mixed, pair.network)
            write_weights(p, v_ref, pair.weights)

        pl.when(i != p.first_query_block(j, offset))(write)
        pair.dy[...] = dy_ref[0].astype(jnp.float32)
        pair.differentiate(i)

    @pl.when(i == p.query_blocks - 1)
    def _() -> None:
        dk_ref[0] = pair.dk[...].astype(dk_ref.dtype)
        pair.dk[...] = jnp.zeros_like(pair.dk)
        read_networks(p, pair.dv, dv_ref)

    @pl.when((j == p.key_blocks - 1) & (i == p.query_blocks - 1))
    def _() -> None:
        for block in range(p.query_blocks):
            dq_ref[0, :, pl.ds(block * LANES, LANES)] = pair.dq[block].astype(dq_ref.dtype)


@dataclass(frozen=True)
class _PairGradient:
    """The gradient of one block pair; fields from `keys` on are scratch memory."""

    p: Problem
    q_ref: Any
    k_ref: Any
    weight_refs: list[Any]
    dw_refs: list[Any]
    keys: Any
    network: Any
    weights: Any
    mixed: Any
    dy: Any
    code: Any
    operand: Any
    scale: Any
    x: Any
    dx: Any
    da_read: Any
    da_made: Any
    ds: Any
    dq: Any
    dk: Any
    dv: Any

    def differentiate(self, query_block: Any) -> None:
        """Adds the pair's part to dq, dk and the sums that dv is read from."""
        self.dx[1][...] = jnp.zeros_like(self.dx[1])
        self._make_x(0, self.x[0])

        def two_octets(half: Any, carry: int) -> int:
            for odd in range(2):
                octet = 2 * half + odd
                last = jnp.maximum(octet - 1, 0)
                self._sum_dv(last, self.dx[1 - odd])
                self._make_x(jnp.minimum(octet + 1, OCTETS - 1), self.x[1 - odd])
                self._make_da(last, self.dx[1 - odd])
                self._make_dx(octet, self.x[odd], self.dx[odd])
            return carry

        lax.fori_loop(0, OCTETS // 2, two_octets, 0)
        self._sum_dv(OCTETS - 1, self.dx[1])
        self._make_da(OCTETS - 1, self.dx[1])
        self._through_scores(query_block)

    def _make_x(self, octet: Any, x_ref: Any) -> None:
        p = self.p
        size = OCTET * p.words_per_key
        x = jnp.zeros(x_ref.shape, jnp.float32)
        for tile in range(p.code_tiles):
            words = self.network[tile, pl.ds(pl.multiple_of(octet * size, 8), size)]
            network = pltpu.bitcast(words, p.dtype)[:, : p.code_width]
            product = matrix_product(network, codes_of_group(p, self.operand, octet // 2, tile))
            x = product if tile == 0 else x + product
        x_ref[...] = x

    def _sum_dv(self, octet: Any, dx_ref: Any) -> None:
        """dv = sum over queries of dx times code."""
        p, dx = self.p, dx_ref[...]
        for tile in range(p.code_tiles):
            codes = codes_of_group(p, self.operand, octet // 2, tile)
            self.dv[tile, octet] += matrix_product(dx, codes, (1, 1))

    def _make_da(self, octet: Any, dx_ref: Any) -> None:
        """da = sum over units of dx times v."""
        self.da_made[octet] = matrix_product(self.weights[octet], dx_ref[...])

    def _make_dx(self, octet: Any, x_ref: Any, dx_ref: Any) -> None:
        """dx = phi'(x) * sum over heads of code times dy; da = sum over units of z times dy."""
        p = self.p
        phi = ACTIVATIONS[p.activation]
        keys = pl.ds(pl.multiple_of(octet * OCTET, OCTET), OCTET)
        codes = [self.code[head, keys] for head in range(p.heads)]
        da = [jnp.zeros((OCTET, LANES), jnp.float32)] * p.heads
        for unit in range(0, p.value_dim, 2):
            dx = []
            for row in (unit, unit + 1):
                z, pull_back = jax.vjp(phi, x_ref[pl.ds(row * OCTET, OCTET)])
                dz = jnp.zeros((OCTET, LANES), jnp.float32)
                for head in range(p.heads):
                    dy = self.dy[pl.ds(head * p.value_dim + row, 1)]
                    dz += codes[head] * dy
                    da[head] += z * dy
                dx += pull_back(dz)
            dx_ref[pl.ds(unit * OCTET, 2 * OCTET)] = jnp.concatenate(dx).astype(p.dtype)
        for head in range(p.heads):
            self.da_read[head, keys] = da[head]

    def _through_scores(self, query_block: Any) -> None:
        """ds = scale * (da - code * mean over heads of code * da), then dq and dk.

        A pair network's gradient is pulled back from the scores, which are made again.
        """
        p, octets = self.p, 4
        for first in range(0, OCTETS, octets):
            keys = slice(first * OCTET, (first + octets) * OCTET)
            da_made = []
            for head in range(p.heads):
                rows = p.head(head, OCTET)
                made = [self.da_made[octet, rows] for octet in range(first, first + octets)]
                da_made.append(jnp.concatenate(made))
            da_read = [self.da_read[head, keys] for head in range(p.heads)]
            da = [read + made for read, made in zip(da_read, da_made, strict=True)]
            codes = [self.code[head, keys] for head in range(p.heads)]
            if p.normalization == "rms_head":
                along = sum(d * a for d, a in zip(da, codes, strict=True)) * (1 / p.true_heads)
                da = [d - a * along for d, a in zip(da, codes, strict=True)]
            if p.normalization in PAIR_NETWORKS:
                scale = self.scale[keys]
                s = [
                    scale * matrix_product(self.keys[h, keys], self.q_ref[0, p.head(h, p.key_dim)])
                    for h in range(p.heads)
                ]
                weights, d_codes = weights_of(self.weight_refs), (da_made, da_read)
                pulled = pull_back(p.normalization, p.true_heads, s, scale > 0, weights, d_codes)
                da = pulled[0]
                self._add_weights(query_block, pulled[1])
            for head in range(p.heads):
                self.ds[head, keys] = (da[head] * self.scale[keys]).astype(p.dtype)
        for head in range(p.heads):
            rows, ds = p.head(head, p.key_dim), self.ds[head]
            self.dq[query_block, rows] += matrix_product(self.k_ref[0, rows], ds)
            self.dk[rows] += matrix_product(self.q_ref[0, rows], ds, (1, 1))

    def _add_weights(self, query_block: Any, dw_Nx1xT: jax.Array | None) -> None:
        columns = pl.ds(pl.multiple_of(query_block * LANES, LANES), LANES)
        for dw_ref in self.dw_refs:
            assert dw_Nx1xT is not None
            for row in range(self.p.weights):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]
