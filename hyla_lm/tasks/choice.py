"""How the next token is chosen."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError

SEEDS = 2**32


@dataclass(frozen=True)
class Sampling:
    """How to sample; temperature 0 takes the likeliest token, top_k 0 and top_p 1 keep all."""

    max_tokens: int = 100
    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        unfit = {
            f"--max_tokens={self.max_tokens} must be at least 1": self.max_tokens < 1,
            f"--temperature={self.temperature} must be at least 0 and finite": (
                not 0 <= self.temperature < float("inf")
            ),
            f"--top_k={self.top_k} must be at least 0": self.top_k < 0,
            f"--top_p={self.top_p} must be above 0 and at most 1": not 0 < self.top_p <= 1,
            f"--seed={self.seed} must be from 0 to {SEEDS - 1}": not 0 <= self.seed < SEEDS,
        }
        for reason, applies in unfit.items():
            if applies:
                raise UserError(f"{reason}: change that flag.")

    @property
    def compiled(self) -> "Sampling":
        """The part that a compiled program depends on: the same for all lengths and seeds."""
        return replace(self, max_tokens=1, seed=0)


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
