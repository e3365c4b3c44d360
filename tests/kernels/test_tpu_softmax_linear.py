"""Softmax and linear attention as `pallas_tpu` equal the reference, in the TPU interpreter."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention import VARIANTS, attend
from hyla_lm.config import UserError
from hyla_lm.kernels.softmax.splash_tpu import splash

B, H, K, U = 2, 2, 16, 24
# Relative to the largest entry. Splash rounds the probabilities' product as one float32 pass does.
TOLERANCE = 2e-5


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(splash.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash, "make_splash_mha", make)


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def operands(queries: int, keys: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    return normal(1, B, queries, H, K), normal(2, B, keys, H, K), normal(3, B, keys, H, U)


def output_and_gradients(qkv: tuple[jax.Array, ...], implementation: str, name: str, **masks):
    function = partial(attend, spec=VARIANTS[name], implementation=implementation, **masks)

    @jax.jit
    def both(*qkv: jax.Array):
        y, pull_back = jax.vjp(function, *qkv)
        return y, *pull_back(normal(4, *y.shape))

    return both(*qkv)


@pytest.mark.parametrize("documents", [False, True], ids=["", "documents"])
@pytest.mark.parametrize(
    ("name", "queries", "keys", "offset", "causal"),
    [
        ("softmax", 200, 200, 0, True),
        ("softmax", 128, 256, 128, True),
        ("softmax", 100, 300, 200, True),
        ("softmax", 30, 140, 0, False),
        ("linear", 200, 200, 0, True),
    ],
)
def test_outputs_and_gradients(
    name: str, queries: int, keys: int, offset: int, causal: bool, documents: bool
) -> None:
    starts = np.random.default_rng(5).random((B, keys)) < 0.05
    masks = {
        "causal": causal,
        "q_offset": offset,
        "segment_ids": jnp.asarray(np.cumsum(starts, axis=1)) if documents else None,
    }
    qkv = operands(queries, keys)
    actual = output_and_gradients(qkv, "pallas_tpu", name, **masks)
    expected = output_and_gradients(qkv, "reference", name, **masks)
    for got, wanted in zip(actual, expected, strict=True):
        scale = float(jnp.max(jnp.abs(wanted)))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * scale)


def test_an_offset_known_only_at_run_time_is_named() -> None:
    def offset_softmax(offset: jax.Array) -> jax.Array:
        qkv = operands(8, 16)
        spec = VARIANTS["softmax"]
        return attend(*qkv, spec, causal=True, q_offset=offset, implementation="pallas_tpu")

    with pytest.raises(UserError, match="known only at run time"):
        jax.jit(offset_softmax)(jnp.int32(3))
