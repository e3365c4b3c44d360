"""The gradient of a block pair's codes, taken through its scores to dq and dk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.hyla.tpu_common import Problem
from hyla_lm.attention.hyla.tpu_pairs import pull_back, weights_of
from hyla_lm.attention.lanes import LANES, matrix_product
from hyla_lm.attention.pairwise import PAIR_NETWORKS

PerHead = Sequence[jax.Array]


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
        da = [read + made for read, made in zip(da_read, da_made, strict=True)]
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
    ) -> list[jax.Array]:
        p, scale = self.p, self.scale[keys]
        s = [
            scale * matrix_product(self.keys[head, keys], self.q_ref[0, p.head(head, p.key_dim)])
            for head in range(p.heads)
        ]
        weights, d_codes = weights_of(self.weight_refs), (list(da_made), list(da_read))
        ds, dw = pull_back(p.normalization, p.true_heads, s, scale > 0, weights, d_codes)
        self._add_weights(query_block, dw)
        return ds

    def _add_weights(self, query_block: Any, dw_Nx1xT: jax.Array | None) -> None:
        columns = pl.ds(pl.multiple_of(query_block * LANES, LANES), LANES)
        for dw_ref in self.dw_refs:
            assert dw_Nx1xT is not None
            for row in range(self.p.weights):
                dw_ref[0, row : row + 1, columns] += dw_Nx1xT[row]
