"""The probability of a given text under a language model."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks.decoding import check_finite, power_of_two, window_starts

POSITIONS_AT_ONCE = 128
WINDOWS_AT_ONCE = 16


@dataclass(frozen=True)
class Score:
    """-log p of each token of a text, given BOS and the tokens before; EOS is not scored."""

    text: str
    tokens: list[int]
    pieces: list[str]
    token_nats: list[float]

    @property
    def nats(self) -> float:
        return math.fsum(self.token_nats)

    @property
    def text_bytes(self) -> int:
        return len(self.text.encode())

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / self.text_bytes


def score(model: Decoder, params: Any, tokenizer: Tokenizer, text: str, row_length: int) -> Score:
    """Scores each token once, with the context that sampling would give it.

    Raises UserError for a text without tokens and for a model that is not causal.
    """
    if not model.config.causal:
        raise UserError("ModelConfig.causal = False: only a causal model can score a text.")
    ids = tokenizer.encode(text)
    if not ids:
        raise UserError("the text has no tokens: give one to score.")
    nats = score_ids(model, params, [tokenizer.bos, *ids], row_length)
    check_finite(nats)
    return Score(text, ids, [tokenizer.processor.IdToPiece(i) for i in ids], nats)


def score_ids(model: Decoder, params: Any, ids: list[int], row_length: int) -> list[float]:
    """-log p of each id but the first."""
    starts = window_starts(len(ids), row_length)
    windows = np.zeros((len(starts), row_length + 1), np.int32)
    for window, start in zip(windows, starts, strict=True):
        part = ids[start : start + row_length + 1]
        window[: len(part)] = part
    nats: list[float] = []
    for first in range(0, len(starts), WINDOWS_AT_ONCE):
        group = windows[first : first + WINDOWS_AT_ONCE]
        filled = np.resize(group, (power_of_two(len(group)), row_length + 1))
        nats_WxT = np.asarray(_nats_of(model, params, filled))
        for start, nats_T in zip(starts[first : first + WINDOWS_AT_ONCE], nats_WxT, strict=False):
            nats += nats_T[len(nats) - start : len(ids) - 1 - start].tolist()
    return nats


@partial(jax.jit, static_argnums=0)
def _nats_of(model: Decoder, params: Any, tokens_WxT1: jax.Array) -> jax.Array:
    """-log p of every token but the first of each window, WxT."""
    hidden_WxTxD: Any = model.apply({"params": params}, tokens_WxT1[:, :-1], method="hidden")

    def at_position(position: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden_WxD, target_W = position
        logits_WxV: Any = model.apply({"params": params}, hidden_WxD, method="logits")
        log_p_WxV = jax.nn.log_softmax(logits_WxV)
        return -jnp.take_along_axis(log_p_WxV, target_W[:, None], axis=1)[:, 0]

    positions = (hidden_WxTxD.swapaxes(0, 1), tokens_WxT1[:, 1:].T)
    return jax.lax.map(at_position, positions, batch_size=POSITIONS_AT_ONCE).T
