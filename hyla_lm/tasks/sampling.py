"""Sampling from a language model with a key-value cache."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.config import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 takes the likeliest token, top_k 0 and top_p 1 keep all."""

    max_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if (
            self.max_tokens < 1
            or not 0 <= self.temperature < float("inf")
            or self.top_k < 0
            or not 0 < self.top_p <= 1
        ):
            raise UserError(
                f"{self} needs --max_tokens of at least 1, --temperature and --top_k of at least "
                "0 and --top_p in (0, 1]: change those flags."
            )


def generate(
    model: Decoder,
    params: Any,
    tokenizer: Tokenizer,
    prompt: str,
    sampling: Sampling,
    context_length: int,
) -> str:
    """A continuation of the prompt up to EOS; raises UserError when it does not fit the context."""
    ids = [tokenizer.bos, *tokenizer.encode(prompt)]
    if len(ids) + sampling.max_tokens > context_length + 1:
        raise UserError(
            f"the prompt's {len(ids)} tokens and --max_tokens={sampling.max_tokens} exceed the "
            f"context of {context_length} tokens: shorten one."
        )
    decoder = model.clone(cache_length=context_length)
    key = jax.random.key(sampling.seed)
    new = _decode(decoder, sampling, params, jnp.asarray([ids], jnp.int32), key).tolist()
    end = new.index(tokenizer.eos) if tokenizer.eos in new else len(new)
    text = tokenizer.decode(ids[1:] + new[:end])
    return text[len(tokenizer.decode(ids[1:])) :]


@partial(jax.jit, static_argnums=(0, 1))
def _decode(
    model: Decoder, sampling: Sampling, params: Any, prompt_1xP: jax.Array, key: jax.Array
) -> jax.Array:
    """max_tokens sampled ids: one pass over the prompt, then one token at a time."""

    def step(cache: Any, tokens_1xT: jax.Array, index: jax.Array | int):
        hidden, updated = model.apply(
            {"params": params, **cache},
            tokens_1xT,
            cache_index=jnp.asarray(index, jnp.int32),
            method="hidden",
            mutable=["cache"],
        )
        logits_V = model.apply({"params": params}, hidden[0, -1], method="logits")
        return updated, logits_V

    def sample_next(carry, position: jax.Array):
        cache, logits_V = carry
        token = choose(logits_V, jax.random.fold_in(key, position), sampling)
        return step(cache, token[None, None], position), token

    length = prompt_1xP.shape[1]
    first = step({}, prompt_1xP, 0)
    positions = jnp.arange(length, length + sampling.max_tokens)
    return jax.lax.scan(sample_next, first, positions)[1]


def choose(logits_V: jax.Array, key: jax.Array, sampling: Sampling) -> jax.Array:
    """One token id: temperature, then top-k, then the smallest nucleus of mass top_p."""
    if sampling.temperature == 0:
        return jnp.argmax(logits_V).astype(jnp.int32)
    order = jnp.argsort(-logits_V)
    sorted_V = logits_V[order] / sampling.temperature
    probability_V = jax.nn.softmax(sorted_V)
    before_V = jnp.cumsum(probability_V) - probability_V
    keep = before_V < sampling.top_p
    if sampling.top_k:
        keep &= jnp.arange(sorted_V.size) < sampling.top_k
    picked = jax.random.categorical(key, jnp.where(keep, sorted_V, -jnp.inf))
    return order[picked].astype(jnp.int32)
