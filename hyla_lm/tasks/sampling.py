"""Sampling from a language model: continuations of prompts, many together."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks.decoding import (
    PIECE,
    STEPS_AT_ONCE,
    Rows,
    Sampling,
    check_finite,
    decoder_of,
    empty_rows,
    extend,
    power_of_two,
    read,
    row_keys,
    window_size,
)

__all__ = ["Sample", "Sampler", "Sampling"]
log = logging.getLogger(__name__)
ROWS_AT_ONCE = 32


@dataclass(frozen=True)
class Sample:
    """A continuation; `tokens` end with EOS if `ended`.

    `log_probability` is that of all tokens in nats, at temperature 1 and with all to choose from.
    """

    prompt: str
    text: str
    tokens: list[int]
    log_probability: float
    ended: bool


class Sampler:
    """Samples from a language model; see hyla_lm.tasks.decoding for what it sees of a long text.

    The text numbered n depends on the seed, n and its prompt, not on the texts sampled with it (up
    to rounding: a batch of another size may add in another order). Raises UserError for a model
    that is not causal.
    """

    def __init__(self, model: Decoder, params: Any, tokenizer: Tokenizer, row_length: int):
        if not model.config.causal:
            raise UserError("ModelConfig.causal = False: only a causal model can be sampled.")
        self.decoder = decoder_of(model, row_length)
        self.params = jax.device_put(params)
        self.tokenizer = tokenizer
        self.row_length = row_length

    def sample(self, prompts: Sequence[str], sampling: Sampling, samples: int = 1) -> list[Sample]:
        """So many continuations of each prompt, in the order of the prompts."""
        return list(self.samples(prompts, sampling, samples))

    def samples(
        self, prompts: Sequence[str], sampling: Sampling, samples: int = 1
    ) -> Iterator[Sample]:
        """The same, ROWS_AT_ONCE together."""
        asked = [prompt for prompt in prompts for _ in range(samples)]
        for first in range(0, len(asked), ROWS_AT_ONCE):
            yield from self._together(asked[first : first + ROWS_AT_ONCE], sampling, first)

    def _together(self, prompts: list[str], sampling: Sampling, first: int) -> Iterator[Sample]:
        texts = [_Text(self._encode(prompt), sampling.max_tokens) for prompt in prompts]
        sizes = [len(text.ids) for text in texts]
        self._decode(texts, sampling, first)
        for prompt, size, text in zip(prompts, sizes, texts, strict=True):
            new = text.ids[size:]
            ended = new[-1] == self.tokenizer.eos
            shown = text.ids[1 : len(text.ids) - ended]
            before = self.tokenizer.decode(text.ids[1:size])
            continued = self.tokenizer.decode(shown)[len(before) :]
            yield Sample(prompt, continued, new, sum(text.log_p), ended)

    def _encode(self, prompt: str) -> list[int]:
        return [self.tokenizer.bos, *self.tokenizer.encode(prompt)]

    def _decode(self, texts: list["_Text"], sampling: Sampling, first: int) -> None:
        """Extends each text up to EOS or max_tokens."""
        self._warn_of_long_prompts([len(text.ids) for text in texts])
        state = empty_rows(self.decoder, self.params, row_keys(sampling.seed, first, len(texts)))
        while live := [row for row, text in enumerate(texts) if text.left]:
            due = [row for row in live if texts[row].read in (0, self.row_length)]
            if due:
                state = self._read(state, sampling, texts, due)
                tokens, log_p = jax.device_get((state.token_B[:, None], state.log_p_B[:, None]))
            else:
                room = (min(texts[row].left, self.row_length - texts[row].read) for row in live)
                steps = min(STEPS_AT_ONCE, *room)
                state, *chosen = extend(self.decoder, sampling.compiled, self.params, state, steps)
                tokens, log_p = (values[:, :steps] for values in jax.device_get(chosen))
                for row in live:
                    texts[row].read += steps
            for row in due or live:
                texts[row].add(tokens[row].tolist(), log_p[row].tolist(), self.tokenizer.eos)

    def _read(self, state: Rows, sampling: Sampling, texts: list["_Text"], due: list[int]) -> Rows:
        """Reads the windows of the rows that are due, filled up to a power of two of rows."""
        at = due + due[:1] * (power_of_two(len(due)) - len(due))
        windows = np.zeros((len(at), self.decoder.cache_length), np.int32)
        for window, row in zip(windows, at, strict=True):
            ids = texts[row].ids
            size = texts[row].read = window_size(len(ids), self.row_length)
            window[:size] = ids[-size:]
        return read(
            self.decoder,
            sampling.compiled,
            min(PIECE, self.row_length),
            self.params,
            state,
            np.array(at, np.int32),
            windows,
            np.array([texts[row].read for row in at], np.int32),
            np.array([len(texts[row].ids) for row in at], np.int32),
        )

    def _warn_of_long_prompts(self, lengths: list[int]) -> None:
        longest, row = max(lengths), self.row_length
        if longest > row:
            log.warning(
                f"the prompt of {longest} tokens is longer than the model's row of {row}: only its "
                f"last {window_size(longest, row)} are read"
            )


@dataclass
class _Text:
    """A text that grows: its tokens, how many more are wanted, and how many the cache holds."""

    ids: list[int]
    left: int
    read: int = 0
    log_p: list[float] = field(default_factory=list)

    def add(self, tokens: list[int], log_p: list[float], eos: int) -> None:
        """Takes tokens up to EOS, which ends the text, and their log-probabilities."""
        taken = tokens[: tokens.index(eos) + 1] if eos in tokens else tokens
        self.ids += taken
        self.log_p += log_p[: len(taken)]
        check_finite(self.log_p)
        self.left = 0 if eos in tokens else self.left - len(taken)
