"""The compiled steps of sampling: read the windows of some rows, and go on with all rows.

A row is a text that grows. The newest token is chosen but not read yet; of the others, those in the
row's window are read: the cache has their keys and values, or their sum in recurrent layers.
Another prompt, seed or number of tokens compiles nothing anew.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks.choice import Sampling, choose

STEPS_AT_ONCE = 8
PIECE = 64


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["cache", "key_B", "token_B", "log_p_B", "read_B", "total_B"],
    meta_fields=[],
)
@dataclass(frozen=True)
class Rows:
    """B rows: their keys, newest tokens and log-probabilities, and what is read.

    `read_B` counts the tokens that are read, `total_B` all but the newest.
    """

    cache: Any
    key_B: jax.Array
    token_B: jax.Array
    log_p_B: jax.Array
    read_B: jax.Array
    total_B: jax.Array


def decoder_of(model: Decoder, window: int) -> Decoder:
    """The model with a cache of whole pieces for a window, and kernels that can decode."""
    piece = min(PIECE, window)
    config = replace(model.config, attention_implementation="auto")
    return model.clone(config=config, cache_length=-(-window // piece) * piece)


@partial(jax.jit, static_argnames="decoder")
def empty_rows(decoder: Decoder, params: Any, key_B: jax.Array) -> Rows:
    """Rows of which nothing is read."""
    batch = len(key_B)
    tokens_Bx1, start = jnp.zeros((batch, 1), jnp.int32), jnp.zeros((), jnp.int32)
    _, shapes = jax.eval_shape(partial(_apply, decoder), params, {}, tokens_Bx1, start)
    cache = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    none_B = jnp.zeros(batch, jnp.int32)
    return Rows(cache, key_B, none_B, jnp.zeros(batch), none_B, none_B)


@partial(jax.jit, static_argnames=("decoder", "sampling", "piece"), donate_argnames="rows")
def read(
    decoder: Decoder,
    sampling: Sampling,
    piece: int,
    params: Any,
    rows: Rows,
    at_R: jax.Array,
    window_RxS: jax.Array,
    size_R: jax.Array,
    total_R: jax.Array,
) -> Rows:
    """Reads the windows of the rows `at_R` from nothing, and chooses the next token of each.

    A window is padded on the right; `total_R` counts the tokens of the whole text.
    """
    axis = _row_axis(decoder)
    fresh = jax.tree.map(lambda leaf: jnp.zeros_like(leaf.take(at_R, axis)), rows.cache)
    last_RxD = jnp.zeros((len(at_R), decoder.config.model_dim), decoder.config.dtype)

    def read_piece(index: jax.Array, carry: tuple[Any, jax.Array]) -> tuple[Any, jax.Array]:
        cache, last_RxD = carry
        start = index * piece
        tokens_RxP = jax.lax.dynamic_slice_in_dim(window_RxS, start, piece, 1)
        hidden_RxPxD, cache = _apply(decoder, params, cache, tokens_RxP, start, size_R - start)
        place_R = size_R - 1 - start
        here_RxD = hidden_RxPxD[jnp.arange(len(at_R)), jnp.clip(place_R, 0, piece - 1)]
        is_here_R = (place_R >= 0) & (place_R < piece)
        return cache, jnp.where(is_here_R[:, None], here_RxD, last_RxD)

    pieces = (jnp.max(size_R) + piece - 1) // piece
    cache, last_RxD = jax.lax.fori_loop(0, pieces, read_piece, (fresh, last_RxD))
    token_R, log_p_R = _choose(decoder, sampling, params, last_RxD, rows.key_B[at_R], total_R)

    def put(old: jax.Array, new: jax.Array) -> jax.Array:
        return old.at[(slice(None),) * axis + (at_R,)].set(new)

    return Rows(
        jax.tree.map(put, rows.cache, cache),
        rows.key_B,
        rows.token_B.at[at_R].set(token_R),
        rows.log_p_B.at[at_R].set(log_p_R),
        rows.read_B.at[at_R].set(size_R),
        rows.total_B.at[at_R].set(total_R),
    )


@partial(jax.jit, static_argnames=("decoder", "sampling"), donate_argnames="rows")
def go_on(
    decoder: Decoder, sampling: Sampling, params: Any, rows: Rows, steps: jax.Array
) -> tuple[Rows, jax.Array, jax.Array]:
    """Chooses up to STEPS_AT_ONCE tokens of every row: ids and log-probabilities, BxSTEPS.

    Windows must have room for them.
    """
    axis, batch = _row_axis(decoder), len(rows.token_B)

    def read_one(cache: Any, token: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
        cache = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, axis), cache)
        hidden_1x1xD, cache = _apply(decoder, params, cache, token[None, None], index)
        return hidden_1x1xD[0, 0], jax.tree.map(lambda leaf: leaf.squeeze(axis), cache)

    def read_newest(rows: Rows) -> tuple[jax.Array, Any]:
        if batch > 1:
            mapped = jax.vmap(read_one, in_axes=(axis, 0, 0), out_axes=(0, axis))
            return mapped(rows.cache, rows.token_B, rows.read_B)
        # Alone, a row's cache is written in place, several times as fast on CPU.
        hidden_1x1xD, cache = _apply(
            decoder, params, rows.cache, rows.token_B[:, None], rows.read_B[0]
        )
        return hidden_1x1xD[:, 0], cache

    def step(index: jax.Array, carry: Any) -> Any:
        rows, token_BxC, log_p_BxC = carry
        hidden_BxD, cache = read_newest(rows)
        total_B = rows.total_B + 1
        token_B, log_p_B = _choose(decoder, sampling, params, hidden_BxD, rows.key_B, total_B)
        rows = Rows(cache, rows.key_B, token_B, log_p_B, rows.read_B + 1, total_B)
        return rows, token_BxC.at[:, index].set(token_B), log_p_BxC.at[:, index].set(log_p_B)

    shape = (batch, STEPS_AT_ONCE)
    nothing = (rows, jnp.zeros(shape, jnp.int32), jnp.zeros(shape))
    return jax.lax.fori_loop(0, steps, step, nothing)


def _row_axis(decoder: Decoder) -> int:
    """The axis of rows in the cache: scanned layers come before it."""
    return int(decoder.config.scan_layers)


def _apply(
    decoder: Decoder,
    params: Any,
    cache: Any,
    tokens_BxT: jax.Array,
    start: jax.Array,
    count_B: jax.Array | None = None,
) -> tuple[jax.Array, Any]:
    """Normed last states of tokens from a position on, and the cache with them.

    Padding after `count_B` tokens takes the position of the last of them.
    """
    batch, length = tokens_BxT.shape
    last_B = jnp.full(batch, length - 1) if count_B is None else count_B - 1
    hidden, updated = decoder.apply(
        {"params": params, **cache},
        tokens_BxT,
        positions=start + jnp.minimum(jnp.arange(length), last_B[:, None]),
        cache_index=start,
        count_B=count_B,
        method="hidden",
        mutable=["cache"],
    )
    return hidden, updated


def _choose(
    decoder: Decoder,
    sampling: Sampling,
    params: Any,
    hidden_BxD: jax.Array,
    key_B: jax.Array,
    position_B: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The token at a position of each row, and its log-probability at temperature 1."""
    logits_BxV: Any = decoder.apply({"params": params}, hidden_BxD, method="logits")
    keys = jax.vmap(jax.random.fold_in)(key_B, position_B)
    token_B = jax.vmap(partial(choose, sampling=sampling))(logits_BxV, keys)
    log_p_BxV = jax.nn.log_softmax(logits_BxV)
    return token_B, jnp.take_along_axis(log_p_BxV, token_B[:, None], axis=1)[:, 0]
