"""The decoder: self-attention, from which decoding continues, blocks and tables.

Dimensions: B batch, T query position, S key position, H heads, K query/key head size, U value head
size, D model, F feed-forward, V vocabulary, N layers, E experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.linear.chunked import attend_from
from hyla_lm.attention.request import Request, make_request
from hyla_lm.attention.spec import AttentionSpec
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.layers import (
    GeluMlp,
    Head,
    MixtureOfExperts,
    OwnHead,
    SwiGlu,
    dense,
    dense_heads,
    make_norm,
    relative_buckets,
    rms_norm,
    rotate,
)
from hyla_lm.model.width import tied_logit_scale
from hyla_lm.parallel.sharded_attention import attend_on_mesh, split_by_batch


@dataclass(frozen=True)
class Context:
    """Inputs that all layers of a call share: positions, documents, decoding and dropout."""

    position_BxT: jax.Array
    segment_BxT: jax.Array | None
    cache_index: jax.Array | None
    count_B: jax.Array | None
    dropout: bool


jax.tree_util.register_dataclass(
    Context, ["position_BxT", "segment_BxT", "cache_index", "count_B"], ["dropout"]
)


class SelfAttention(nn.Module):
    """Projections around `attend`, with rotary or relative positions.

    Only the last `answers` of T positions are queries; None takes all. The request is sown into the
    collection `intermediates`. Decoding keeps keys and values in the collection `cache`, or if
    `recurrent` the sum of their products.
    """

    config: ModelConfig
    spec: AttentionSpec
    recurrent: bool
    cache_length: int
    answers: int | None = None

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array, context: Context) -> jax.Array:
        c, dtype = self.config, jnp.dtype(self.config.dtype)

        def project(x: jax.Array, heads: int, size: int, name: str) -> jax.Array:
            return dense_heads((heads, size), c.use_bias, dtype, name)(x)

        asking_BxTxD = last(x_BxTxD, self.answers)
        q = project(asking_BxTxD, c.num_heads, c.head_dim, "query")
        k = project(x_BxTxD, c.kv_heads, c.head_dim, "key")
        v = project(x_BxTxD, c.kv_heads, c.value_size, "value")
        if c.qk_norm:
            q, k = rms_norm(dtype, "query_norm")(q), rms_norm(dtype, "key_norm")(k)
        if c.positions == "rotary":
            q = rotate(q, last(context.position_BxT, self.answers), c.rope_theta)
            k = rotate(k, context.position_BxT, c.rope_theta)
        if self.recurrent and context.cache_index is not None:
            y_BxTxHxU = self._attend_from_state(q, k, v, context)
        else:
            y_BxTxHxU = self._attend(q, k, v, self._pair_weights(asking_BxTxD), context)
        if c.gated_attention:
            gate = dense_heads(y_BxTxHxU.shape[2:], False, dtype, "gate")
            y_BxTxHxU *= jax.nn.sigmoid(gate(asking_BxTxD))
        out = dense_heads(x_BxTxD.shape[-1], c.use_bias, dtype, "out", axis=(-2, -1))
        return out(y_BxTxHxU)

    def _attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        weights: Mapping[str, jax.Array],
        context: Context,
    ) -> jax.Array:
        offset: int | jax.Array = k.shape[1] - q.shape[1]
        if context.cache_index is not None:
            start, offset = context.cache_index, context.cache_index + offset
            k, v = self._extend("cached_key", k, start), self._extend("cached_value", v, start)
        request = make_request(
            q,
            repeat_heads(k, self.config.num_heads),
            repeat_heads(v, self.config.num_heads),
            self.spec,
            bias=self._relative_bias(q.shape[1], k.shape[1], offset),
            causal=self.config.causal,
            segment_ids=context.segment_BxT,
            q_offset=offset,
            deep_kernel_HxUxU=self._deep_kernel(),
            dropout=self._dropout_mask(q.shape[1], k.shape[1], context.dropout),
            weights=weights,
        )
        self.sow("intermediates", "request", request)
        return self.attend(request)

    def attend(self, request: Request) -> jax.Array:
        """Attention of the layer's request; changed_codes.py has another for changed codes."""
        return attend_on_mesh(request, self.config.attention_implementation)

    def _attend_from_state(
        self, q: jax.Array, k: jax.Array, v: jax.Array, context: Context
    ) -> jax.Array:
        batch, length, heads, head_dim = k.shape
        if context.count_B is not None:
            is_token_BxT = jnp.arange(length) < context.count_B[:, None]
            k = jnp.where(is_token_BxT[..., None, None], k, 0)
        shape = (batch, heads, head_dim, v.shape[-1])
        state = self.variable("cache", "state", jnp.zeros, shape, jnp.float32)
        y_BxTxHxU, state.value = attend_from(state.value, q, k, v, self.spec.activation)
        return y_BxTxHxU.astype(v.dtype)

    def _extend(self, name: str, new_BxTxHxK: jax.Array, index: jax.Array) -> jax.Array:
        batch, _, heads, size = new_BxTxHxK.shape
        shape = (batch, self.cache_length, heads, size)
        cache = self.variable("cache", name, jnp.zeros, shape, new_BxTxHxK.dtype)
        cache.value = jax.lax.dynamic_update_slice_in_dim(cache.value, new_BxTxHxK, index, 1)
        return cache.value

    def _pair_weights(self, asking_BxTxD: jax.Array) -> dict[str, jax.Array]:
        """The weights of a pair network; they start at 0, where heads do not mix."""
        weights = {}
        network = self.spec.pair_network
        for key, weight in network.weights.items() if network else ():
            shape, zeros = (self.config.num_heads,) * len(weight.axes), nn.initializers.zeros
            name = f"pair_{key}"
            if weight.by_query:
                dense = nn.DenseGeneral(shape, use_bias=False, kernel_init=zeros, name=name)
                weights[key] = dense(asking_BxTxD)
            else:
                weights[key] = self.param(name, zeros, shape)
        return weights

    def _deep_kernel(self) -> jax.Array | None:
        if self.spec.value_depth == 1:
            return None
        shape = (self.config.num_heads, self.config.value_size, self.config.value_size)
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", in_axis=(0, 1))
        return self.param("deep_kernel", init, shape)

    def _relative_bias(
        self, q_length: int, k_length: int, offset: int | jax.Array
    ) -> jax.Array | None:
        c = self.config
        if c.positions != "relative":
            return None
        init = nn.initializers.normal(c.relative_buckets**-0.5)
        table_HxR = self.param("relative_bias", init, (c.num_heads, c.relative_buckets))
        bucket_TxS = relative_buckets(
            jnp.arange(q_length) + offset,
            jnp.arange(k_length),
            c.relative_buckets,
            c.relative_max_distance,
        )
        return table_HxR[None, :, bucket_TxS]

    def _dropout_mask(self, q_length: int, k_length: int, active: bool) -> jax.Array | None:
        rate = self.config.attention_dropout
        if not active or rate == 0:
            return None
        key, shape = self.make_rng("dropout"), (1, 1, k_length, k_length)
        kept = jax.random.bernoulli(key, 1 - rate, shape)[:, :, k_length - q_length :]
        return kept / (1 - rate)


def repeat_heads(x_BxSxGxK: jax.Array, heads: int) -> jax.Array:
    """Each of G heads as often as makes `heads`, next to itself."""
    groups = x_BxSxGxK.shape[2]
    return x_BxSxGxK if groups == heads else jnp.repeat(x_BxSxGxK, heads // groups, axis=2)


def last(x_BxTx: jax.Array, count: int | None) -> jax.Array:
    """The last `count` positions, or all."""
    return x_BxTx if count is None else x_BxTx[:, -count:]


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
        if c.scan_layers:
            scanned = nn.scan(
                Blocks,
                variable_axes={"params": 0, "cache": 0, "intermediates": 0},
                split_rngs={"params": True, "dropout": True},
                in_axes=nn.broadcast,
                length=c.num_layers // len(c.pattern),
            )
            self.blocks = scanned(c, len(c.pattern), self.cache_length)
        else:
            self.blocks = Blocks(c, c.num_layers, self.cache_length, self.answers)
        self.final_norm = make_norm(c.norm, c.use_bias, dtype)

    @property
    def answers(self) -> int | None:
        """The number of last positions with outputs; None for all."""
        return self.io.answers if isinstance(self.io, Features) else None

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
