"""A decoder and a train step as one writes them first: what bench_step.py compares with.

Flax modules, three projections, T x T matrices of scores for every head, logits of all positions at
once, and JAX's own gradients. NanoDO's decoder is of this form: learned positions, pre-norm, GELU.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from hyla_lm.model.config import ModelConfig


class PlainAttention(nn.Module):
    """Causal softmax attention."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        c, length = self.config, x_BxTxD.shape[1]
        heads = (c.num_heads, c.head_dim)
        q = nn.DenseGeneral(heads, use_bias=False, name="query")(x_BxTxD)
        k = nn.DenseGeneral(heads, use_bias=False, name="key")(x_BxTxD)
        v = nn.DenseGeneral(heads, use_bias=False, name="value")(x_BxTxD)
        s_BxHxTxS = jnp.einsum("bthk,bshk->bhts", q * c.head_dim**-0.5, k)
        visible_TxS = jnp.tril(jnp.ones((length, length), bool))
        s_BxHxTxS = jnp.where(visible_TxS, s_BxHxTxS, jnp.finfo(s_BxHxTxS.dtype).min)
        a_BxHxTxS = jax.nn.softmax(s_BxHxTxS, axis=-1)
        y_BxTxHxU = jnp.einsum("bhts,bshk->bthk", a_BxHxTxS, v)
        return nn.DenseGeneral(c.model_dim, axis=(-2, -1), use_bias=False, name="out")(y_BxTxHxU)


class PlainDecoder(nn.Module):
    """Logits BxTxV of tokens BxT."""

    config: ModelConfig
    vocab_size: int

    @nn.compact
    def __call__(self, tokens_BxT: jax.Array) -> jax.Array:
        c, length = self.config, tokens_BxT.shape[1]
        table = nn.Embed(self.vocab_size, c.model_dim, name="embed")
        y_BxTxD = table(tokens_BxT)
        y_BxTxD += nn.Embed(length, c.model_dim, name="positions")(jnp.arange(length))
        for layer in range(c.num_layers):
            normed = nn.LayerNorm(use_bias=False, name=f"attention_norm_{layer}")(y_BxTxD)
            y_BxTxD += PlainAttention(c, name=f"attention_{layer}")(normed)
            normed = nn.LayerNorm(use_bias=False, name=f"mlp_norm_{layer}")(y_BxTxD)
            up = nn.gelu(nn.Dense(c.mlp_dim, use_bias=False, name=f"up_{layer}")(normed))
            y_BxTxD += nn.Dense(c.model_dim, use_bias=False, name=f"down_{layer}")(up)
        return table.attend(nn.LayerNorm(use_bias=False, name="final_norm")(y_BxTxD))


def make_plain_step(config: ModelConfig, vocab_size: int) -> tuple[Any, Any]:
    """(init, step): init() is a state, step(state, tokens_BxT1) a new state and the mean loss."""
    model, optimizer = PlainDecoder(config, vocab_size), optax.adamw(1e-3, weight_decay=0.1)

    def init(length: int) -> Any:
        params = model.init(jax.random.key(0), jnp.zeros((1, length), jnp.int32))
        return params, optimizer.init(params)

    def loss(params: Any, tokens_BxT1: jax.Array) -> jax.Array:
        logits = model.apply(params, tokens_BxT1[:, :-1])
        each = optax.softmax_cross_entropy_with_integer_labels(logits, tokens_BxT1[:, 1:])
        return each.mean()

    def step(state: Any, tokens_BxT1: jax.Array) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, tokens_BxT1)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    return jax.jit(init, static_argnums=0), jax.jit(step, donate_argnums=0)
