"""The gradient of a block pair with queries on lanes: for every size and dtype.

8 keys at a time, the vector unit computes what depends on the query: dz, and the part of da through
the readout of y. Meanwhile the matrix units compute what depends on the key: x of the next keys,
and of the last ones dv and the part of da through x.

The value networks are those of queries_forward.py, in another order of rows.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.codes import (
    GROUP_KEYS,
    GROUPS,
    OCTET,
    OCTETS,
    ScoresGradient,
    code_tiles,
    code_width,
    codes_of_group,
    operand_shape,
    words_per_key,
    write_codes,
    write_keys,
)
from hyla_lm.attention.hyla.queries_forward import column_key, group_values, network_shape
from hyla_lm.attention.lanes import LANES, Problem, lane, matrix_product, repeat, rows_at, unrolled
from hyla_lm.attention.spec import ACTIVATIONS

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
            dv=pltpu.VMEM((code_tiles(p), OCTETS, rows, code_width(p)), jnp.float32),
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
        size = OCTET * words_per_key(p)
        x = jnp.zeros(x_ref.shape, jnp.float32)
        for tile in range(code_tiles(p)):
            words = self.network[tile, pl.ds(pl.multiple_of(octet * size, 8), size)]
            network = pltpu.bitcast(words, p.dtype)[:, : code_width(p)]
            codes = codes_of_group(p, self.operand, lax.div(octet, 2), tile)
            product = matrix_product(network, codes)
            x = product if tile == 0 else x + product
        x_ref[...] = x

    def _sum_dv(self, octet: Any, dx_ref: Any) -> None:
        """dv = sum over queries of dx times code."""
        p, dx = self.p, dx_ref[...]
        for tile in range(code_tiles(p)):
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


def write_networks_by_unit(p: Problem, v_ref: Any, mixed_ref: Any, network_ref: Any) -> None:
    """Writes the value networks of 128 keys as block diagonals over the codes of their group.

    Rows are ordered (8 keys, unit, key), so that x has 8 keys of one unit in a register.
    """
    row_key = lax.broadcasted_iota(jnp.int32, (OCTET, LANES), 0)
    for (group, tile), words in group_values(p, v_ref).items():
        mixed_ref[...] = pltpu.bitcast(words, p.dtype).astype(jnp.float32)
        for half in range(GROUP_KEYS // OCTET):
            own = column_key() == row_key + half * OCTET
            size = OCTET * words_per_key(p)
            network = network_ref.at[tile, pl.ds((2 * group + half) * size, size)]
            repeat(p.value_dim // 2, partial(_write_two_units, p, own, mixed_ref, network))


def write_weights(p: Problem, v_ref: Any, weights_ref: Any) -> None:
    """Writes v of 8 keys at a time: rows (head, key), columns (unit, key), diagonal in keys."""
    columns = OCTET * p.value_dim
    row_unit = lax.broadcasted_iota(jnp.int32, (p.value_dim, columns), 0)
    column = lax.broadcasted_iota(jnp.int32, (p.value_dim, columns), 1)
    spread_UxUS = (lax.div(column, OCTET) == row_unit).astype(p.dtype)
    row_key = lax.rem(lax.broadcasted_iota(jnp.int32, (LANES, columns), 0), OCTET)
    own = row_key == lax.rem(lax.broadcasted_iota(jnp.int32, (LANES, columns), 1), OCTET)
    for head in range(0, p.heads, 2):
        two = []
        for odd in range(2):
            v_SxU = v_ref[0, p.head(head + odd, p.value_dim)].T
            two.append(jnp.where(own, matrix_product(v_SxU, spread_UxUS), 0.0))
        for octet in range(OCTETS):
            both = jnp.concatenate([weights[p.head(octet, OCTET)] for weights in two])
            weights_ref[octet, pl.ds(head * OCTET, 2 * OCTET)] = both.astype(p.dtype)


def read_networks(p: Problem, sum_ref: Any, dv_ref: Any) -> None:
    """Reads dv, HU x 128 keys, from the sums over queries of dx times each code of the key's group.

    Sets the sums to zero for the next keys.
    """
    group_of_lane = lax.div(lane(), GROUP_KEYS)
    dv = [jnp.zeros((p.value_dim, LANES), jnp.float32) for _ in range(p.heads)]
    for group in range(GROUPS):
        for tile in range(code_tiles(p)):
            mixed = unrolled(
                GROUP_KEYS,
                partial(_read_network, p, sum_ref.at[tile, pl.ds(2 * group, 2)]),
                jnp.zeros((p.value_dim, code_width(p)), jnp.float32),
            )
            for octet in (2 * group, 2 * group + 1):
                sum_ref[tile, octet] = jnp.zeros_like(sum_ref[tile, octet])
            mixed = jnp.concatenate([mixed] * (LANES // code_width(p)), axis=1)
            for place in range(code_width(p) // GROUP_KEYS):
                head = tile * GROUPS + place
                moved = pltpu.roll(mixed, (group - place) * GROUP_KEYS % LANES, 1)
                dv[head] = jnp.where(group_of_lane == group, moved, dv[head])
    for head in range(p.heads):
        dv_ref[0, p.head(head, p.value_dim)] = dv[head].astype(dv_ref.dtype)


def _write_two_units(
    p: Problem, own: jax.Array, mixed_ref: Any, network_ref: Any, pair: Any
) -> None:
    """Writes two units of the networks of 8 keys, whose columns are their own."""
    units = [jnp.where(own, mixed_ref[pl.ds(2 * pair + odd, 1)], 0.0) for odd in range(2)]
    words = pltpu.bitcast(jnp.concatenate(units).astype(p.dtype), jnp.int32)
    network_ref[rows_at(pair, words.shape[0])] = words


def _read_network(p: Problem, sum_ref: Any, key: Any, mixed_UxHS: jax.Array) -> jax.Array:
    """Adds the columns of a key of a group."""
    rows = sum_ref[lax.div(key, OCTET), pl.ds(lax.rem(key, OCTET), p.value_dim, stride=OCTET)]
    return jnp.where(column_key(code_width(p)) == key, rows, mixed_UxHS)
