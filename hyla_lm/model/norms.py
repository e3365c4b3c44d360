"""Norms, in float32 whatever the activations: LayerNorm, or RMSNorm, which has a scale alone."""

import flax.linen as nn
import jax.numpy as jnp

NORMS = ("layer", "rms")
EPSILON = 1e-6  # added to the variance or the mean square


def make_norm(kind: str, use_bias: bool, dtype: jnp.dtype, name: str | None = None) -> nn.Module:
    """A norm of the residual stream, as ModelConfig.norm says."""
    if kind == "rms":
        return rms_norm(dtype, name)
    return nn.LayerNorm(EPSILON, use_bias=use_bias, dtype=dtype, name=name)


def rms_norm(dtype: jnp.dtype, name: str | None = None) -> nn.RMSNorm:
    """scale * x / sqrt(mean(x^2) + EPSILON) over the last dimension (Zhang and Sennrich)."""
    return nn.RMSNorm(EPSILON, dtype=dtype, name=name)
