"""Softmax and linear attention as `pallas_tpu` equal the reference, in the TPU interpreter."""

from functools import partial

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


def output_and_gradients(qkv: tuple[jax.Array, ...], implementation: str, name: str, **masks):
    function = partial(attend, spec=VARIANTS[name], implementation=implementation, **masks)

    @jax.jit
    def both(*qkv: jax.Array):
        y, pull_back = jax.vjp(function, *qkv)
        return y, *pull_back(normal(4, *y.shape).astype(y.dtype))

    return both(*qkv)


def documents(keys: int) -> jax.Array:
    starts = np.random.default_rng(5).random((B, keys)) < 0.05
    return jnp.asarray(np.cumsum(starts, axis=1))


def assert_agreement(
    name: str, qkv: tuple[jax.Array, ...], tolerance: float = TOLERANCE, **masks
) -> None:
    actual = output_and_gradients(qkv, "pallas_tpu", name, **masks)
    expected = output_and_gradients(qkv, "reference", name, **masks)
    for got, wanted in zip(actual, expected, strict=True):
        assert got.dtype == wanted.dtype
        got, wanted = np.float32(got), np.float32(wanted)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


SIZES = [(200, 200, 0, True), (128, 256, 128, True), (100, 300, 200, True), (30, 140, 0, False)]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("packed", [False, True], ids=["", "documents"])
@pytest.mark.parametrize(("queries", "keys", "offset", "causal"), SIZES)
def test_softmax(queries: int, keys: int, offset: int, causal: bool, packed: bool) -> None:
    segments = documents(keys) if packed else None
    qkv = operands(queries, keys)
    assert_agreement("softmax", qkv, causal=causal, q_offset=offset, segment_ids=segments)


@pytest.mark.usefixtures("splash_alone")
@pytest.mark.parametrize("packed", [False, True], ids=["", "documents"])
@pytest.mark.parametrize(("queries", "keys", "offset", "causal"), SIZES)
def test_softmax_by_splash_attention(
    queries: int, keys: int, offset: int, causal: bool, packed: bool
) -> None:
    segments = documents(keys) if packed else None
    qkv = operands(queries, keys)
    assert_agreement("softmax", qkv, causal=causal, q_offset=offset, segment_ids=segments)


@pytest.mark.usefixtures("splash_alone")
def test_splash_attention_leaves_few_gradients_of_queries_to_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its backward kernel then takes several blocks of keys at a time."""
    monkeypatch.setattr(libraries, "MAX_BLOCK", 128)
    monkeypatch.setattr(libraries, "MAX_PARTS", 2)
    assert libraries._block_sizes(512, 512, K).block_kv_dkv == 256
    assert_agreement("softmax", operands(512, 512), causal=True, segment_ids=documents(512))


@pytest.mark.parametrize(
    ("keys", "head_dim", "parts"),
    [
        *((2048, 64, 4), (8192, 64, 16), (16384, 64, 16), (65536, 128, 16), (131072, 64, 32)),
        *((65536, 256, 64), (65536, 1024, 128), (17 * 512, 64, 17)),
    ],
)
def test_gradients_of_queries_that_splash_attention_leaves(
    keys: int, head_dim: int, parts: int
) -> None:
    """More than 16 where longer blocks would not fit on the chip, or not divide the keys."""
    sizes = libraries._block_sizes(keys, keys, head_dim)
    assert keys / sizes.block_kv_dkv == parts
    assert sizes.block_kv_dkv_compute == 512


@pytest.mark.parametrize("packed", [False, True], ids=["", "documents"])
def test_linear(packed: bool) -> None:
    segments = documents(200) if packed else None
    assert_agreement("linear", operands(200, 200), causal=True, segment_ids=segments)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("length", [2, 127, 129, 384])
def test_softmax_at_odd_lengths(length: int) -> None:
    assert_agreement("softmax", operands(length, length), causal=True)


@pytest.mark.usefixtures("interpreted")
def test_softmax_over_keys_that_no_query_sees() -> None:
    assert_agreement("softmax", operands(30, 300), causal=True, segment_ids=documents(300))


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("max_tiles", "at_once"), [(80, 6), (9, 3), (1, 1)])
def test_softmax_of_some_heads_at_once(
    max_tiles: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_tpu, "MAX_TILES", max_tiles)
    problem = whole_tpu.Problem(B, 6, 16, 32, K**-0.5, 2, 2, True, 0, jnp.dtype("float32"))
    assert problem.heads_at_once == at_once
    assert_agreement("softmax", operands(200, 200, heads=6), causal=True)


@pytest.mark.usefixtures("simulated")
def test_softmax_in_bfloat16() -> None:
    qkv = tuple(x.astype(jnp.bfloat16) for x in operands(200, 200))
    assert_agreement("softmax", qkv, BFLOAT16_TOLERANCE, causal=True, segment_ids=documents(200))


@pytest.mark.usefixtures("interpreted")
def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, k, v = operands(200, 200)
    # Of scores up to 4,000 float32 keeps 2e-4, and the code of a pair is their exponential.
    assert_agreement("softmax", (1e3 * q, k, v), 1e-3, causal=True)


@pytest.mark.usefixtures("interpreted")
def test_a_query_that_sees_nothing_gets_zeros_and_gives_none() -> None:
    """Here the first queries stand before the first key."""
    qkv = operands(200, 200)
    y, *gradients = output_and_gradients(qkv, "pallas_tpu", "softmax", causal=True, q_offset=-50)
    assert not np.any(y[:, :50])
    assert not np.any(gradients[0][:, :50])
    assert_agreement("softmax", qkv, causal=True, q_offset=-50)


def test_an_offset_known_only_at_run_time_is_named() -> None:
    def offset_softmax(offset: jax.Array) -> jax.Array:
        qkv = operands(8, 16)
        spec = VARIANTS["softmax"]
        return attend(*qkv, spec, causal=True, q_offset=offset, implementation="pallas_tpu")

    with pytest.raises(UserError, match="known only at run time"):
        jax.jit(offset_softmax)(jnp.int32(3))
