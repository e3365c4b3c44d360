"""The output head, which makes logits of hidden states."""

from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp


@partial(
    jax.tree_util.register_dataclass, data_fields=["kernel_VxD", "bias_V"], meta_fields=["scale"]
)
@dataclass(frozen=True)
class Head:
    """logits = scale * hidden . kernel + bias."""

    kernel_VxD: jax.Array
    bias_V: jax.Array | None = None
    scale: float = 1.0

    def logits(self, hidden: jax.Array) -> jax.Array:
        """float32 logits over V of states ...xD, multiplied in the states' dtype."""
        kernel_VxD = self.kernel_VxD.astype(hidden.dtype)
        logits = jnp.einsum("...d,vd->...v", hidden, kernel_VxD, preferred_element_type=jnp.float32)
        logits = logits * self.scale
        return logits if self.bias_V is None else logits + self.bias_V


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
