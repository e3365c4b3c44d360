"""The gradient of a block pair with queries on lanes: for every size and dtype.

8 keys at a time, the vector unit computes what depends on the query: dz, and the part of da through
the readout of y. Meanwhile the matrix units compute what depends on the key: x of the next keys,
and of the last ones dv and the part of da through x.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.tpu_common import (
    OCTET,
    OCTETS,
    Problem,
    codes_of_group,
    operand_shape,
    write_codes,
    write_keys,
)
from hyla_lm.attention.hyla.tpu_gradient_scores import ScoresGradient
from hyla_lm.attention.hyla.tpu_networks import (
    network_shape,
    read_networks,
    write_networks_by_unit,
    write_weights,
)
from hyla_lm.attention.lanes import LANES, matrix_product
from hyla_lm.attention.spec import ACTIVATIONS
from hyla_lm.attention.unrolled import rows_at, unrolled

DS_KEYS = 32


@dataclass(frozen=True)
class QueriesGradient:
    """The steps of a block pair; fields from `network` on are scratch memory."""

    p: Problem
    scores: ScoresGradient
    network: Any
    weights: Any
    mixed: Any
    dy: Any
    code: Any
    operand: Any
    x: Any
    dx: Any
    da_read: Any
    da_made: Any
    dv: Any

    @staticmethod
    def scratch(p: Problem) -> dict[str, Any]:
        pairs, rows = (p.heads, LANES, LANES), OCTET * p.value_dim
        return dict(
            network=pltpu.VMEM(network_shape(p), jnp.int32),
            weights=pltpu.VMEM((OCTETS, p.heads * OCTET, rows), p.dtype),
            mixed=pltpu.VMEM((p.value_dim, LANES), jnp.float32),
            dy=pltpu.VMEM((p.heads * p.value_dim, LANES), jnp.float32),
            code=pltpu.VMEM(pairs, jnp.float32),
            operand=pltpu.VMEM(operand_shape(p), p.dtype),
            x=[pltpu.VMEM((rows, LANES), jnp.float32)] * 2,
            dx=[pltpu.VMEM((rows, LANES), p.dtype)] * 2,
            da_read=pltpu.VMEM(pairs, jnp.float32),
            da_made=pltpu.VMEM((OCTETS, p.heads * OCTET, LANES), jnp.float32),
            dv=pltpu.VMEM((p.code_tiles, OCTETS, rows, p.code_width), jnp.float32),
        )

    def prepare(
        self, starts_keys: Any, v_ref: Any, segment_refs: list[Any], positions: tuple[Any, Any]
    ) -> None:
        """The codes of the pair, and before the first of a block of keys what depends on it."""
        p, scores = self.p, self.scores
        write = partial(
            write_codes,
            *(p, scores.q_ref, scores.keys, segment_refs, positions),
            *(self.code, self.operand, scores.scale),
        )

        @pl.when(starts_keys)
        def _() -> None:
            write_keys(p, scores.k_ref, scores.keys)
            write()
            write_networks_by_unit(p, v_ref, self.mixed, self.network)
            write_weights(p, v_ref, self.weights)

        pl.when(~starts_keys)(write)

    def differentiate(self, query_block: Any, dy_ref: Any) -> None:
        """Adds the pair's part to dq, dk and the sums that dv is read from."""
        self.dy[...] = dy_ref[0].astype(jnp.float32)
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
        for first in range(0, LANES, DS_KEYS):
            self._make_ds(query_block, slice(first, first + DS_KEYS))
        self.scores.add(query_block)

    def write_dv(self, dv_ref: Any) -> None:
        """dv of a block of keys; sets the sums to zero."""
        read_networks(self.p, self.dv, dv_ref)

    def _make_x(self, octet: Any, x_ref: Any) -> None:
        p = self.p
        size = OCTET * p.words_per_key
        x = jnp.zeros(x_ref.shape, jnp.float32)
        for tile in range(p.code_tiles):
            words = self.network[tile, pl.ds(pl.multiple_of(octet * size, 8), size)]
            network = pltpu.bitcast(words, p.dtype)[:, : p.code_width]
            codes = codes_of_group(p, self.operand, lax.div(octet, 2), tile)
            product = matrix_product(network, codes)
            x = product if tile == 0 else x + product
        x_ref[...] = x

    def _sum_dv(self, octet: Any, dx_ref: Any) -> None:
        """dv = sum over queries of dx times code."""
        p, dx = self.p, dx_ref[...]
        for tile in range(p.code_tiles):
            codes = codes_of_group(p, self.operand, lax.div(octet, 2), tile)
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

        def two_units(pair: Any, da: list[jax.Array]) -> list[jax.Array]:
            dx = []
            for row in (2 * pair, 2 * pair + 1):
                z, pull_back = jax.vjp(phi, x_ref[rows_at(row, OCTET)])
                dz = jnp.zeros((OCTET, LANES), jnp.float32)
                for head in range(p.heads):
                    dy = self.dy[pl.ds(head * p.value_dim + row, 1)]
                    dz += codes[head] * dy
                    da[head] += z * dy
                dx += pull_back(dz)
            dx_ref[rows_at(pair, 2 * OCTET)] = jnp.concatenate(dx).astype(p.dtype)
            return da

        zeros = [jnp.zeros((OCTET, LANES), jnp.float32)] * p.heads
        da = unrolled(p.value_dim // 2, two_units, zeros)
        for head in range(p.heads):
            self.da_read[head, keys] = da[head]

    def _make_ds(self, query_block: Any, keys: slice) -> None:
        p, octets = self.p, range(keys.start // OCTET, keys.stop // OCTET)
        codes, da_made, da_read = [], [], []
        for head in range(p.heads):
            made = [self.da_made[octet, p.head(head, OCTET)] for octet in octets]
            da_made.append(jnp.concatenate(made))
            da_read.append(self.da_read[head, keys])
            codes.append(self.code[head, keys])
        self.scores.make_ds(query_block, keys, codes, da_made, da_read)
