"""The output head, which makes logits of hidden states."""

from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.platform import platform
from hyla_lm.model.dense import product_of_rows


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
