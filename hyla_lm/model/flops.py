"""FLOPs per token by formula, and the share of the peak that training reaches."""

from typing import Any

import jax

from hyla_lm.attention.chips import CHIPS
from hyla_lm.model.config import Features, ModelConfig, Tokens

# bfloat16 peak of one device in FLOP/s, by jax's device_kind.
PEAK_FLOPS = {
    "TPU v4": 275e12,
    **{chip.device_kind: chip.peak_flops for chip in CHIPS.values()},
    **{f"TPU {chip.generation}": chip.peak_flops for chip in CHIPS.values()},
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def count_parameters(params: Any) -> int:
    """The number of parameters; a tied token table counts once."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def train_flops_per_token(config: ModelConfig, io: Tokens | Features, length: int) -> float:
    """A multiply-add counts 2, backward twice forward; causal attention sees half the keys.

    In the last layer only positions with outputs count as queries.
    """
    c = config
    of_head = c.model_dim * (c.head_dim + c.value_size)
    keys_and_values, query_and_out = c.kv_heads * of_head, c.num_heads * of_head
    gate = c.model_dim * c.num_heads * c.value_size if c.gated_attention else 0
    experts = c.experts_per_token if c.feedforward == "moe" else 1
    mlp = c.model_dim * c.mlp_dim * (3 if c.feedforward == "swiglu" else 2) * experts
    keys = (length + 1) / 2 if c.causal else length
    answered = 1.0  # the share of positions whose outputs are computed
    if isinstance(io, Features) and io.answers is not None and not c.scan_layers:
        answered = io.answers / length
    width = io.vocab_size if isinstance(io, Tokens) else io.output_size
    forward = c.model_dim * width * answered
    for layer in range(c.num_layers):
        queries = answered if layer == c.num_layers - 1 else 1.0
        of_query = query_and_out + gate + mlp + _attention_products(c, layer, keys)
        forward += keys_and_values + queries * of_query
    return 6.0 * forward


def attention_flops_per_token(config: ModelConfig, length: int) -> float:
    """The part of a training step's FLOPs that attention kernels do: no projections."""
    keys = (length + 1) / 2 if config.causal else length
    return 6.0 * sum(_attention_products(config, i, keys) for i in range(config.num_layers))


def _attention_products(c: ModelConfig, layer: int, keys: float) -> float:
    """Multiply-adds of a query with its keys, or with the state in linear attention."""
    spec = c.spec(layer)
    if spec.is_recurrent:
        return 2.0 * c.num_heads * c.head_dim * c.value_size
    products = c.num_heads * (c.head_dim + c.value_size) * keys
    if spec.value_network == "hypernetwork":
        products += c.num_heads * c.value_size * keys
    if spec.value_depth == 2:
        products += c.num_heads * c.value_size * (c.value_size + 1) * keys
    return products


def model_flops_utilization(tokens_per_second: float, flops_per_token: float) -> float | None:
    """The share of the peak of all devices; None if the chip's peak is not known."""
    peak = PEAK_FLOPS.get(jax.devices()[0].device_kind)
    if peak is None:
        return None
    return tokens_per_second * flops_per_token / (peak * jax.device_count())
