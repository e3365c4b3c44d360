"""The parameters of a small model, by their shapes alone."""

from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder

SIZES = dict(num_layers=2, model_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_experts=3)


def params_of(io: Tokens | Features, **fields: Any) -> Any:
    model = Decoder(ModelConfig(**{**SIZES, **fields}), io)
    is_text = isinstance(io, Tokens)
    inputs = jnp.zeros((1, 4), jnp.int32) if is_text else jnp.zeros((1, 4, io.input_size))
    return jax.eval_shape(model.init, jax.random.key(0), inputs)["params"]
