"""The decoder.

Dimensions: B batch, T query position, S key position, H heads, K query/key head size, U value head
size, D model, F feed-forward, V vocabulary, N layers, E experts.
"""

from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.feedforward import GeluMlp, MixtureOfExperts, SwiGlu
from hyla_lm.model.layers import Head, OwnHead, dense, make_norm
from hyla_lm.model.self_attention import Context, SelfAttention, last
from hyla_lm.model.width import tied_logit_scale
from hyla_lm.parallel.sharded_attention import split_by_batch


class Block(nn.Module):
    """u + feedforward(norm(u)) for u = y + attention(norm(y)), of the last `answers` positions."""

    config: ModelConfig
    layer: int
    cache_length: int
    answers: int | None = None

    @nn.compact
    def __call__(self, y_BxTxD: jax.Array, context: Context) -> jax.Array:
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        spec, recurrent = c.spec(self.layer), c.is_recurrent(self.layer)
        attention = SelfAttention(
            c, spec, recurrent, self.cache_length, self.answers, name="attention"
        )
        normed = make_norm(c.norm, c.use_bias, dtype, "attention_norm")(y_BxTxD)
        u_BxTxD = split_by_batch(last(y_BxTxD, self.answers) + attention(normed, context))
        normed = make_norm(c.norm, c.use_bias, dtype, "feedforward_norm")(u_BxTxD)
        return split_by_batch(u_BxTxD + make_feedforward(c)(normed))


def make_feedforward(c: ModelConfig) -> nn.Module:
    """The feed-forward layer of a block, as ModelConfig.feedforward says."""
    dtype = jnp.dtype(c.dtype)
    if c.feedforward == "gelu":
        return GeluMlp(c.mlp_dim, c.use_bias, dtype, name="feedforward")
    if c.feedforward == "swiglu":
        return SwiGlu(c.mlp_dim, dtype, name="feedforward")
    return MixtureOfExperts(
        c.mlp_dim, c.num_experts, c.experts_per_token, dtype, name="feedforward"
    )


class Blocks(nn.Module):
    """One repeat of the attention pattern if layers are scanned, or else all layers."""

    config: ModelConfig
    count: int
    cache_length: int
    answers: int | None = None

    @nn.compact
    def __call__(self, y_BxTxD: jax.Array, context: Context) -> tuple[jax.Array, None]:
        make_block = nn.remat(Block, prevent_cse=False) if self.config.remat else Block
        for layer in range(self.count):
            answers = self.answers if layer == self.count - 1 else None
            name = f"block_{layer}"
            block = make_block(self.config, layer, self.cache_length, answers, name=name)
            y_BxTxD = block(y_BxTxD, context)
        return y_BxTxD, None


class Decoder(nn.Module):
    """A pre-norm decoder over tokens or dense features.

    cache_length is the S of the key-value cache when decoding.
    """

    config: ModelConfig
    io: Tokens | Features
    cache_length: int = 0

    def setup(self) -> None:
        c, dtype = self.config, jnp.dtype(self.config.dtype)
        if isinstance(self.io, Tokens):
            self.embed: nn.Module = TokenTable(self.io.vocab_size, c.model_dim)
            if not c.tie_embeddings:
                self.head = OwnHead(self.io.vocab_size, c.model_dim, c.use_bias)
        else:
            self.embed = dense(c.model_dim, c.use_bias, dtype)
            self.head = OwnHead(self.io.output_size, c.model_dim, c.use_bias)
        if c.positions == "learned":
            self.position_embed = TokenTable(c.max_length, c.model_dim)
        self.blocks = self._make_blocks()
        self.final_norm = make_norm(c.norm, c.use_bias, dtype)

    @property
    def answers(self) -> int | None:
        """The number of last positions with outputs; None for all."""
        return self.io.answers if isinstance(self.io, Features) else None

    def _make_blocks(self) -> nn.Module:
        c = self.config
        if not c.scan_layers:
            return Blocks(c, c.num_layers, self.cache_length, self.answers)
        scanned = nn.scan(
            Blocks,
            variable_axes={"params": 0, "cache": 0, "intermediates": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=nn.broadcast,
            length=c.num_layers // len(c.pattern),
        )
        return scanned(c, len(c.pattern), self.cache_length)

    def hidden(
        self,
        inputs: jax.Array,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        cache_index: jax.Array | None = None,
        count_B: jax.Array | None = None,
        dropout: bool = False,
    ) -> jax.Array:
        """Normed last states, BxTxD, of tokens BxT or features BxTxI; T may be fewer `answers`.

        When decoding against the cache, cache_index is the position of the first input and count_B
        how many inputs of a row are tokens: padding stands behind them, and later calls overwrite
        it.
        """
        batch, length = inputs.shape[:2]
        if positions is None:
            start = 0 if cache_index is None else cache_index
            positions = jnp.broadcast_to(jnp.arange(length) + start, (batch, length))
        context = Context(positions, segment_ids, cache_index, count_B, dropout)
        dtype = jnp.dtype(self.config.dtype)
        y_BxTxD = self.embed(inputs).astype(dtype)
        if self.config.positions == "learned":
            y_BxTxD += self.position_embed(positions).astype(dtype)
        y_BxTxD = split_by_batch(y_BxTxD)
        y_BxTxD, _ = self.blocks(y_BxTxD, context)
        return self.final_norm(last(y_BxTxD, self.answers))

    def output_head(self) -> Head:
        """The head of logits or dense outputs: the token table if it is tied."""
        c = self.config
        if isinstance(self.io, Features):
            return self.head()
        if not c.tie_embeddings:
            return replace(self.head(), cap=c.logit_soft_cap)
        scale = tied_logit_scale(c)
        return Head(self.embed.table, scale=scale, cap=c.logit_soft_cap)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 logits over V, or dense outputs, of normed states."""
        return self.output_head().logits(hidden)

    def __call__(self, inputs: jax.Array, **context: Any) -> jax.Array:
        return self.logits(self.hidden(inputs, **context))


class TokenTable(nn.Module):
    """A table of vectors looked up by id, drawn with variance 1/D."""

    size: int
    model_dim: int

    def setup(self) -> None:
        init = nn.initializers.normal(self.model_dim**-0.5)
        self.table = self.param("table", init, (self.size, self.model_dim))

    def __call__(self, ids: jax.Array) -> jax.Array:
        return self.table[ids]
