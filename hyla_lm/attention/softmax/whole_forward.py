"""Softmax attention forward on TPU: in rows of 128 queries whose scores all stay on the chip."""

from collections.abc import Iterator
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from hyla_lm.attention.chips import chip_in_use
from hyla_lm.attention.lanes import LANES, matrix_product
from hyla_lm.attention.softmax.whole_common import (
    LOG2_E,
    NOTHING_SEEN,
    Problem,
    Specs,
    block,
    write_hidden_once,
)


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
    specs = Specs(p)
    call = pl.pallas_call(
        partial(_forward_kernel, p),
        grid=(p.batch, p.heads // p.heads_at_once),
        in_specs=specs.operands,
        out_specs=[specs.rows(p.value_dim, p.queries), specs.log_z],
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
    rows = [(head, queries) for head in range(p.heads_at_once) for queries in range(p.query_blocks)]

    @cache
    def keys_SxK(head: int) -> jax.Array:
        return k_ref[0, p.key_rows(head)].T

    def make_scores(turn: int) -> Iterator[jax.Array]:
        """Writes a row's scores tile by tile; yields each query's largest score so far."""
        head, queries = rows[turn]
        q_KxT = q_ref[0, p.key_rows(head), block(queries)]
        largest = jnp.full((1, LANES), NOTHING_SEEN, jnp.float32)
        for keys in range(p.key_blocks_seen(queries)):
            s_SxT = matrix_product(keys_SxK(head)[block(keys)], q_KxT) * (p.scale * LOG2_E)
            s_SxT += hidden_ref[block(keys), block(queries)]
            s_ref[turn % 2, block(keys)] = s_SxT
            largest = jnp.maximum(largest, jnp.max(s_SxT, axis=0, keepdims=True))
            yield largest

    def read_out(turn: int, largest: jax.Array) -> Iterator[None]:
        """Sums a row's values by its scores tile by tile, and writes the result after the last."""
        head, queries = rows[turn]
        z_1xT, y_UxT = jnp.zeros((1, LANES)), jnp.zeros((p.value_dim, LANES))
        for keys in range(p.key_blocks_seen(queries)):
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
