"""Softmax attention as `pallas_tpu` equals the reference, in the TPU interpreter."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import VARIANTS, attend
from hyla_lm.attention.softmax import libraries, whole_tpu
from hyla_lm.attention.softmax.libraries import splash
from hyla_lm.errors import UserError

B, H, K, U = 2, 2, 16, 24
# Relative to the largest entry. Splash rounds the probabilities' product as one float32 pass does.
TOLERANCE = 2e-5
# bfloat16 keeps 8 bits of the operands of five products; the reference rounds y and v's gradient.
BFLOAT16_TOLERANCE = 2**-6


@pytest.fixture
def splash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every row were too long for our kernel; runs splash attention on this machine."""
    monkeypatch.setattr(whole_tpu, "MAX_LENGTH", 0)
    make = partial(splash.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash, "make_splash_mha", make)


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


def operands(queries: int, keys: int, heads: int = H) -> tuple[jax.Array, jax.Array, jax.Array]:
    q = normal(1, B, queries, heads, K)
    return q, normal(2, B, keys, heads, K), normal(3, B, keys, heads, U)


def output_and_gradients(qkv: tuple[jax.Array, ...], implementation: str, **masks):
    function = partial(attend, spec=VARIANTS["softmax"], implementation=implementation, **masks)

    @jax.jit
    def both(*qkv: jax.Array):
        y, pull_back = jax.vjp(function, *qkv)
        return y, *pull_back(normal(4, *y.shape).astype(y.dtype))

    return both(*qkv)


def documents(keys: int) -> jax.Array:
    starts = np.random.default_rng(5).random((B, keys)) < 0.05
    return jnp.asarray(np.cumsum(starts, axis=1))


def assert_agreement(qkv: tuple[jax.Array, ...], tolerance: float = TOLERANCE, **masks) -> None:
    actual = output_and_gradients(qkv, "pallas_tpu", **masks)
    expected = output_and_gradients(qkv, "reference", **masks)
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        got, wanted = np.float32(got), np.float32(wanted)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


SIZES = [  # queries, keys, offset, causal, of documents
    (2, 2, 0, True, False),
    (129, 129, 0, True, False),
    (128, 256, 128, True, True),
    (100, 300, 200, True, False),
    (30, 300, 0, True, True),  # with keys that no query sees
    (30, 140, 0, False, False),
    (200, 200, -50, True, False),  # the first queries stand before the first key
]


def masks(keys: int, offset: int, causal: bool, packed: bool) -> dict[str, Any]:
    segments = documents(keys) if packed else None
    return {"causal": causal, "q_offset": offset, "segment_ids": segments}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("queries", "keys", "offset", "causal", "packed"), SIZES)
def test_softmax(queries: int, keys: int, offset: int, causal: bool, packed: bool) -> None:
    qkv = operands(queries, keys)
    assert_agreement(qkv, **masks(keys, offset, causal, packed))


@pytest.mark.usefixtures("splash_alone")
@pytest.mark.parametrize(("queries", "keys", "offset", "causal", "packed"), SIZES[2:6])
def test_softmax_by_splash_attention(
    queries: int, keys: int, offset: int, causal: bool, packed: bool
) -> None:
    qkv = operands(queries, keys)
    assert_agreement(qkv, **masks(keys, offset, causal, packed))


@pytest.mark.usefixtures("splash_alone")
def test_splash_attention_leaves_few_gradients_of_queries_to_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its backward kernel then takes several blocks of keys at a time."""
    monkeypatch.setattr(libraries, "MAX_BLOCK", 128)
    monkeypatch.setattr(libraries, "MAX_PARTS", 2)
    assert libraries._block_sizes(512, 512, K).block_kv_dkv == 256
    assert_agreement(operands(512, 512), causal=True, segment_ids=documents(512))


@pytest.mark.usefixtures("interpreted")
def test_softmax_of_some_heads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 200 has 3 tiles that causal queries see: 3 of 6 heads fit into 9."""
    monkeypatch.setattr(whole_tpu, "MAX_TILES", 9)
    assert_agreement(operands(200, 200, heads=6), causal=True)


@pytest.mark.usefixtures("simulated")
def test_softmax_in_bfloat16() -> None:
    qkv = tuple(x.astype(jnp.bfloat16) for x in operands(200, 200))
    assert_agreement(qkv, BFLOAT16_TOLERANCE, causal=True, segment_ids=documents(200))


@pytest.mark.usefixtures("interpreted")
def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, k, v = operands(200, 200)
    # Of scores up to 4,000 float32 keeps 2e-4, and the code of a pair is their exponential.
    assert_agreement((1e3 * q, k, v), 1e-3, causal=True)


def test_an_offset_known_only_at_run_time_is_named() -> None:
    def offset_softmax(offset: jax.Array) -> jax.Array:
        qkv = operands(8, 16)
        spec = VARIANTS["softmax"]
        return attend(*qkv, spec, causal=True, q_offset=offset, implementation="pallas_tpu")

    with pytest.raises(UserError, match="known only at run time"):
        jax.jit(offset_softmax)(jnp.int32(3))
