"""Norms, dense and feed-forward layers, positions and the output head.

Dense layers take all tokens as the rows of one matrix. The gradient of a weight sums over rows and
positions. As two axes XLA for CPU transposes what stands before the layer to make them one, and
computes it again on the way: a third of a train step. As one axis it does not.

Norms are in float32 whatever the activations: LayerNorm, or RMSNorm, which has only a scale.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hyla_lm.attention.chips import platform

NORMS = ("layer", "rms")
FEEDFORWARDS = ("gelu", "swiglu", "moe")
EPSILON = 1e-6  # added to the variance or the mean square
ROTARY_BASE = 10_000.0
_expert_init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))


def make_norm(kind: str, use_bias: bool, dtype: jnp.dtype, name: str | None = None) -> nn.Module:
    """A norm of the residual stream, as ModelConfig.norm says."""
    if kind == "rms":
        return rms_norm(dtype, name)
    return nn.LayerNorm(EPSILON, use_bias=use_bias, dtype=dtype, name=name)


def rms_norm(dtype: jnp.dtype, name: str | None = None) -> nn.RMSNorm:
    """scale * x / sqrt(mean(x^2) + EPSILON) over the last dimension (Zhang and Sennrich)."""
    return nn.RMSNorm(EPSILON, dtype=dtype, name=name)


def product_of_rows(
    x: jax.Array, kernel: jax.Array, dimensions: Any, *arguments: Any, **options: Any
) -> jax.Array:
    """`lax.dot_general` of the last axes of x and the first of the kernel, as layers ask for it."""
    (x_axes, _), _ = dimensions
    if platform() != "cpu":
        return lax.dot_general(x, kernel, dimensions, *arguments, **options)
    count = len(x_axes)
    before, summed, after = x.shape[:-count], x.shape[-count:], kernel.shape[count:]
    rows, inner = x.reshape(-1, math.prod(summed)), kernel.reshape(math.prod(summed), -1)
    y = lax.dot_general(rows, inner, (((1,), (0,)), ((), ())), *arguments, **options)
    return y.reshape(*before, *after)


def dense(size: int, use_bias: bool, dtype: Any, name: str | None = None) -> nn.Dense:
    """x W + b over the last axis."""
    return nn.Dense(size, use_bias, dtype, dot_general=product_of_rows, name=name)


def dense_heads(
    features: tuple[int, ...] | int,
    use_bias: bool,
    dtype: Any,
    name: str,
    axis: int | tuple[int, ...] = -1,
) -> nn.DenseGeneral:
    """x W + b from the last axes of x to some axes, such as heads and their units."""
    return nn.DenseGeneral(
        features, axis, use_bias=use_bias, dtype=dtype, dot_general=product_of_rows, name=name
    )


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


def rotate(x_BxTxHxK: jax.Array, position_BxT: jax.Array, base: float = ROTARY_BASE) -> jax.Array:
    """Rotary embedding (Su et al.): dimension i is paired with i + K/2; angles in float32."""
    half = x_BxTxHxK.shape[-1] // 2
    frequency_K2 = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = position_BxT[:, :, None, None].astype(jnp.float32) * frequency_K2
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x = x_BxTxHxK.astype(jnp.float32)
    if platform() == "cpu":  # one roll is a third of the time; on TPU two halves are less
        cos_K, sin_K = jnp.concatenate([cos, cos], axis=-1), jnp.concatenate([-sin, sin], axis=-1)
        return (x * cos_K + jnp.roll(x, half, axis=-1) * sin_K).astype(x_BxTxHxK.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x_BxTxHxK.dtype)


def relative_buckets(
    q_position_T: jax.Array,
    k_position_S: jax.Array,
    num_buckets: int,
    max_distance: int,
) -> jax.Array:
    """T5's bucket of every query and key, int32 of shape TxS (Raffel et al.).

    Keys after the query share bucket 0 with the query itself.
    """
    n = jnp.maximum(q_position_T[:, None] - k_position_S[None, :], 0)
    exact = num_buckets // 2
    ratio = n.astype(jnp.float32) / exact + np.finfo(np.float32).eps
    steps = jnp.log(ratio) / np.log(max_distance / exact) * (num_buckets - exact)
    far = jnp.minimum(exact + steps.astype(jnp.int32), num_buckets - 1)
    return jnp.where(n < exact, n, far)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel_VxD", "bias_V"],
    meta_fields=["scale", "cap"],
)
@dataclass(frozen=True)
class Head:
    """logits = soften(scale * hidden . kernel + bias)."""

    kernel_VxD: jax.Array
    bias_V: jax.Array | None = None
    scale: float = 1.0
    cap: float | None = None

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 logits over V of states ...xD, multiplied in the states' dtype."""
        logits = self._products(hidden, self.kernel_VxD.astype(hidden.dtype))
        logits = logits * self.scale
        return self.soften(logits if self.bias_V is None else logits + self.bias_V)

    def _products(self, hidden: jax.Array, kernel_VxD: jax.Array) -> jax.Array:
        """hidden . kernel; on CPU by a kernel whose gradient transposes no logits."""
        if platform() != "cpu":
            formula = "...d,vd->...v"
            return jnp.einsum(formula, hidden, kernel_VxD, preferred_element_type=jnp.float32)
        axes = (((hidden.ndim - 1,), (0,)), ((), ()))
        return product_of_rows(hidden, kernel_VxD.T, axes, preferred_element_type=jnp.float32)

    def soften(self, logits: jax.Array) -> jax.Array:
        """cap * tanh(logits / cap), which is within the cap and keeps their order."""
        return logits if self.cap is None else self.cap * jnp.tanh(logits / self.cap)


class OwnHead(nn.Module):
    """The parameters of a head that is not tied to the token table."""

    size: int
    model_dim: int
    use_bias: bool

    def setup(self) -> None:
        kernel_init, bias_init = nn.initializers.lecun_normal(), nn.initializers.zeros
        self.kernel = self.param("kernel", kernel_init, (self.model_dim, self.size))
        self.bias = self.param("bias", bias_init, (self.size,)) if self.use_bias else None

    def __call__(self) -> Head:
        return Head(self.kernel.T, self.bias)
