"""A decoder small enough to compile in a moment, and what tests ask of it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.model.config import ModelConfig
from hyla_lm.model.decoder import Decoder

LENGTH, VOCABULARY = 12, 17
SMALL: dict[str, Any] = dict(
    num_layers=2, model_dim=16, num_heads=2, head_dim=4, mlp_dim=24, dtype="float32"
)
QUICK_COMPILE = {"xla_backend_optimization_level": 0}
# float32 through two layers: the same sums in another order.
TOLERANCE = 1e-5


def small(**fields: Any) -> ModelConfig:
    return ModelConfig(**{**SMALL, **fields})


def tokens(batch: int = 2, length: int = LENGTH) -> jax.Array:
    drawn = np.random.default_rng(0).integers(VOCABULARY, size=(batch, length), dtype=np.int32)
    return jnp.asarray(drawn)


def shapes(model: Decoder, inputs: jax.Array) -> dict:
    return jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]


def parameters(model: Decoder, inputs: jax.Array) -> dict:
    """Random values in every parameter, biases and scales too, so that an unused one shows."""
    rng = np.random.default_rng(1)

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jnp.asarray(np.float32(rng.normal(scale=0.3, size=leaf.shape)), leaf.dtype)

    return jax.tree.map(draw, shapes(model, inputs))
