"""Decoding: how a token is chosen, what the model sees of a long text, and the compiled steps.

The newest token of a row is chosen but not read yet; of the others, those in the row's window are
read: the cache has their keys and values, or their sum in recurrent layers. Another prompt, seed or
number of tokens compiles nothing anew.

The window is the whole text up to T tokens, the length of a row in training. With one more, the
older half is dropped, and the window grows to T again: between half a row and a row of the last
tokens. So a pass over half a row is due only every half row, and a token costs the same on average
however long the text is. This is so for every kind of attention and positions. A recurrent layer
could go on without end, and rotary positions too, but no distance above T was trained, and sums
that nothing normalises would grow beyond what the next layer has seen. Learned positions end at T.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.config.declare import LARGEST
from hyla_lm.errors import UserError
from hyla_lm.model.decoder import Decoder

SEEDS = 2**32
STEPS_AT_ONCE = 8
PIECE = 64


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 takes the likeliest token, top_k 0 and top_p 1 keep all."""

    max_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        is_zero = self.temperature == 0
        for name, fits, bounds in (
            ("max_tokens", 1 <= self.max_tokens <= LARGEST, f"from 1 to {LARGEST}"),
            ("temperature", is_zero or 1e-6 <= self.temperature <= 1e6, "0 or from 1e-6 to 1e6"),
            ("top_k", self.top_k >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("seed", 0 <= self.seed < SEEDS, f"from 0 to {SEEDS - 1}"),
        ):
            if not fits:
                raise UserError(f"{name}={getattr(self, name)} must be {bounds}.")

    @property
    def compiled(self) -> "Sampling":
        """The part that a compiled program depends on: the same for all lengths and seeds."""
        return replace(self, max_tokens=1, seed=0)


def check_finite(log_p: Sequence[float]) -> None:
    """Raises UserError for probabilities that are no numbers, which a damaged model gives."""
    if not all(map(math.isfinite, log_p)):
        raise UserError("the model gives probabilities that are no numbers: take another step.")


def choose(logits_V: jax.Array, key: jax.Array, sampling: Sampling) -> jax.Array:
    """One token id: temperature, then top-k, then the smallest nucleus of mass top_p."""
    if sampling.temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    if sampling.top_k == 0 and sampling.top_p == 1:  # On CPU the sort costs more than the model.
        return jax.random.categorical(key, logits_V / sampling.temperature).astype(jnp.int32)
    order = jnp.argsort(-logits_V)
    sorted_V = logits_V[order] / sampling.temperature
    probability_V = jax.nn.softmax(sorted_V)
    before_V = jnp.cumsum(probability_V) - probability_V
    keep = before_V < sampling.top_p
    if sampling.top_k:
        keep &= jnp.arange(sorted_V.size) < min(sampling.top_k, sorted_V.size)
    picked = jax.random.categorical(key, jnp.where(keep, sorted_V, -jnp.inf))
    return order[picked].astype(jnp.int32)


def row_keys(seed: int, first: int, count: int) -> jax.Array:
    """The keys of texts numbered from `first`; text 0 has the seed's own.

    A token's key is its text's, folded with its position, which never comes near 2^32 - number.
    """
    key = jax.random.key(seed)
    number_B = np.arange(first, first + count, dtype=np.uint32)
    folded_B = jax.vmap(jax.random.fold_in, (None, 0))(key, -number_B)
    return jnp.where(number_B == 0, key, folded_B)


def window_size(total: int, row: int) -> int:
    """How many of the last tokens of a text of `total` the model sees."""
    half = (row + 1) // 2
    return total if total <= row else half + (total - row - 1) % (row - half + 1)


def window_starts(total: int, row: int) -> list[int]:
    """Where windows of a row each start, so that every token is predicted as `window_size` says.

    Each window predicts what the one before did not reach; the first token is predicted by none.
    """
    half = (row + 1) // 2
    return list(range(0, max(total - half, 1), row - half + 1))


def power_of_two(count: int) -> int:
    """The smallest power of two that is not below the count."""
    return 1 << (count - 1).bit_length()


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
def extend(
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
