"""A tiny model whose every token matters, and what it says if every token is computed anew."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import path_of

ROW = 11
PROMPT = "bast ten ba"


def random_decoder(vocab_size: int, **fields: Any) -> tuple[Decoder, Any]:
    """A tiny model whose kernels and tables are random and large enough for a token to matter."""
    sizes = dict(model_dim=16, num_heads=2, head_dim=8, mlp_dim=16, dtype="float32")
    free = dict(num_layers=1, tie_embeddings=False, max_length=ROW)
    model = Decoder(ModelConfig(**{**sizes, **free, **fields}), Tokens(vocab_size))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    rng = np.random.default_rng(4)

    def draw(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if path_of(path).endswith("scale"):
            return jnp.ones(shape.shape)
        small = path_of(path).endswith("/bias")
        return jnp.asarray(np.float32(rng.normal(size=shape.shape) * (0.1 if small else 0.5)))

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


def windows(ids: list[int]) -> list[int]:
    """What is seen after these tokens: a full row drops its older half for the next token."""
    seen: list[int] = []
    for token in ids:
        seen = [*seen, token][-6:] if len(seen) == ROW else [*seen, token]
    return seen


@dataclass(frozen=True)
class Reference:
    """Log-probabilities of the token after a text, by a full forward pass over its window."""

    model: Decoder
    params: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "_forward", jax.jit(self._log_probabilities))

    def _log_probabilities(self, row: jax.Array) -> jax.Array:
        return jax.nn.log_softmax(self.model.apply({"params": self.params}, row)[0])

    def after(self, ids: list[int]) -> np.ndarray:
        seen = windows(ids)
        row = np.zeros((1, ROW), np.int32)
        row[0, : len(seen)] = seen
        return np.asarray(self._forward(row)[len(seen) - 1])

    def nats(self, ids: list[int]) -> list[float]:
        """-log p of each token but the first."""
        return [-float(self.after(ids[:end])[ids[end]]) for end in range(1, len(ids))]

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            log_p = self.after(ids)
            second, first = np.sort(log_p)[-2:]
            assert first - second > 1e-4, "two tokens are too close to tell right from wrong"
            ids.append(int(np.argmax(log_p)))
        return ids[len(prompt) :]
