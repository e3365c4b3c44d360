"""Feed-forward layers: GELU MLP, SwiGLU and a token-routed mixture of experts."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.model.layers import dense

FEEDFORWARDS = ("gelu", "swiglu", "moe")
_expert_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))


class GeluMlp(nn.Module):
    """down(gelu(up(x))) with the tanh form of GELU."""

    mlp_dim: int
    use_bias: bool
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        up = dense(self.mlp_dim, self.use_bias, self.dtype, "up")(x_BxTxD)
        down = dense(x_BxTxD.shape[-1], self.use_bias, self.dtype, "down")
        return down(jax.nn.gelu(up, approximate=True))


class SwiGlu(nn.Module):
    """down(silu(gate(x)) * up(x)), without biases."""

    mlp_dim: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        gate = dense(self.mlp_dim, False, self.dtype, "gate")(x_BxTxD)
        up = dense(self.mlp_dim, False, self.dtype, "up")(x_BxTxD)
        return dense(x_BxTxD.shape[-1], False, self.dtype, "down")(jax.nn.silu(gate) * up)


class MixtureOfExperts(nn.Module):
    """The top k of E GELU experts a token, weighted by the softmax over their k gate values.

    Every expert computes every token and the gate picks: exact, without a capacity limit.
    """

    mlp_dim: int
    num_experts: int
    experts_per_token: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x_BxTxD: jax.Array) -> jax.Array:
        model_dim, experts = x_BxTxD.shape[-1], self.num_experts
        gate = self.param("gate", nn.linear.default_kernel_init, (model_dim, experts))
        down = self.param("down", _expert_init, (experts, self.mlp_dim, model_dim))
        up = self.param("up", _expert_init, (experts, model_dim, self.mlp_dim))
        weight_BxTxE = self.gate_weights(x_BxTxD, gate)
        hidden = jnp.einsum("btd,edf->btef", x_BxTxD.astype(self.dtype), up.astype(self.dtype))
        hidden = jax.nn.gelu(hidden, approximate=True) * weight_BxTxE[..., None].astype(self.dtype)
        return jnp.einsum("btef,efd->btd", hidden, down.astype(self.dtype))

    def gate_weights(self, x_BxTxD: jax.Array, gate_DxE: jax.Array) -> jax.Array:
        """Routing weights in float32, shape BxTxE: exactly 0 for an expert not chosen."""
        logits_BxTxE = x_BxTxD.astype(jnp.float32) @ gate_DxE
        top, index = jax.lax.top_k(logits_BxTxE, self.experts_per_token)
        chosen_BxTxkxE = jax.nn.one_hot(index, self.num_experts)
        return jnp.einsum("btk,btke->bte", jax.nn.softmax(top, axis=-1), chosen_BxTxkxE)
