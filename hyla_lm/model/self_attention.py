"""Self-attention of a layer: projections around `attend`, and what decoding keeps of the past.

The letters of dimensions are those of decoder.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import AttentionSpec, Request, attend_from, make_request
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.layers import dense_heads, relative_buckets, rms_norm, rotate
from hyla_lm.parallel.sharded_attention import attend_on_mesh


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
            q = rotate(q, last(context.position_BxT, self.answers))
            k = rotate(k, context.position_BxT)
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
