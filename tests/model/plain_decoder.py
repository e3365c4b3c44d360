"""A decoder of one layer written out head by head, to compare the real one with."""

from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.model.config import ModelConfig
from hyla_lm.model.layers import relative_buckets, rotate

EPSILON = 1e-6


def rms(x: jax.Array, scale: jax.Array) -> jax.Array:
    return scale * x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + EPSILON)


def norm(c: ModelConfig, p: dict[str, Any], x: jax.Array) -> jax.Array:
    if c.norm == "rms":
        assert set(p) == {"scale"}
        return rms(x, p["scale"])
    centred = x - x.mean(axis=-1, keepdims=True)
    return rms(centred, p["scale"]) + p["bias"]


def of_head(p: dict[str, jax.Array], x: jax.Array, head: int) -> jax.Array:
    return x @ p["kernel"][:, head] + p["bias"][head]


def scores(c: ModelConfig, p: dict[str, Any], x_BxTxD: jax.Array, head: int) -> jax.Array:
    """Scores of every query and key of a head, BxTxS."""
    length, kv_head = x_BxTxD.shape[1], head // (c.num_heads // c.kv_heads)
    q, k = of_head(p["query"], x_BxTxD, head), of_head(p["key"], x_BxTxD, kv_head)
    if c.qk_norm:
        q, k = rms(q, p["query_norm"]["scale"]), rms(k, p["key_norm"]["scale"])
    if c.positions == "rotary":
        places = jnp.arange(length)[None]
        q, k = (rotate(x[:, :, None], places)[:, :, 0] for x in (q, k))
    found = q @ k.swapaxes(1, 2) / jnp.sqrt(c.head_dim)
    if c.positions == "relative":
        at = jnp.arange(length)
        bucket = relative_buckets(at, at, c.relative_buckets, c.relative_max_distance)
        found += p["relative_bias"][head][bucket]
    return found


def attention(c: ModelConfig, p: dict[str, Any], x_BxTxD: jax.Array) -> jax.Array:
    seen = jnp.tri(x_BxTxD.shape[1], dtype=bool)
    raw = [scores(c, p, x_BxTxD, head) for head in range(c.num_heads)]
    if c.attention == "softmax":
        code = [jax.nn.softmax(jnp.where(seen, s, -jnp.inf), axis=-1) for s in raw]
    else:
        code = [jnp.where(seen, s, 0.0) for s in raw]
    if c.attention == "hyla":
        size = jnp.sqrt(sum(a * a for a in code) / c.num_heads + EPSILON)
        code = [a / size for a in code]
    group = c.num_heads // c.kv_heads
    values = [of_head(p["value"], x_BxTxD, head // group) for head in range(c.num_heads)]
    if c.attention == "hyla":
        units = sum(a[..., None] * v[:, None] for a, v in zip(code, values, strict=True))
        heads = [jnp.sum(a[..., None] * jax.nn.relu(units), axis=2) for a in code]
    else:
        heads = [a @ v for a, v in zip(code, values, strict=True)]
    if c.gated_attention:
        kernel = p["gate"]["kernel"]
        heads = [y * jax.nn.sigmoid(x_BxTxD @ kernel[:, h]) for h, y in enumerate(heads)]
    return sum(y @ p["out"]["kernel"][h] for h, y in enumerate(heads)) + p["out"]["bias"]


def logits(c: ModelConfig, params: dict[str, Any], ids_BxT: jax.Array) -> jax.Array:
    p = params["blocks"]["block_0"]
    y = params["embed"]["table"][ids_BxT]
    y = y + attention(c, p["attention"], norm(c, p["attention_norm"], y))
    x, mlp = norm(c, p["feedforward_norm"], y), p["feedforward"]
    up = jax.nn.gelu(x @ mlp["up"]["kernel"] + mlp["up"]["bias"], approximate=True)
    y = y + up @ mlp["down"]["kernel"] + mlp["down"]["bias"]
    table = params["embed"]["table"]
    found = norm(c, params["final_norm"], y) @ table.T
    cap = c.logit_soft_cap
    return found if cap is None else cap * jnp.tanh(found / cap)
