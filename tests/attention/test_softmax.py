"""Softmax by our TPU kernel, splash attention and cuDNN's call equals the reference."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from hyla_lm.attention.attend import attend
from hyla_lm.attention.request import make_request
from hyla_lm.attention.softmax import libraries, whole_tpu
from hyla_lm.attention.softmax.libraries import splash
from hyla_lm.attention.spec import VARIANTS
from tests.attention.comparison import assert_close, documents, normal, output_and_gradients

B, H, K, U = 2, 2, 16, 24
SOFTMAX = VARIANTS["softmax"]
# Relative to the largest entry. Splash rounds the probabilities' product as one float32 pass does.
TOLERANCE = 2e-5
# bfloat16 keeps 8 bits of the operands of five products; the reference rounds y and v's gradient.
BFLOAT16_TOLERANCE = 2**-6
# Sums of up to 40 products in another order, in float32.
CUDNN_TOLERANCE = 3e-6


@pytest.fixture
def splash_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every row were too long for our kernel; runs splash attention on this machine."""
    monkeypatch.setattr(whole_tpu, "MAX_LENGTH", 0)
    make = partial(splash.make_splash_mha, interpret=True)
    monkeypatch.setattr(splash, "make_splash_mha", make)


def operands(queries: int, keys: int, heads: int = H) -> tuple[jax.Array, ...]:
    q = normal(1, B, queries, heads, K)
    return q, normal(2, B, keys, heads, K), normal(3, B, keys, heads, U)


def assert_agreement(
    qkv: tuple[jax.Array, ...], tolerance: float = TOLERANCE, **masks: Any
) -> None:
    found, wanted = (
        output_and_gradients(partial(attend, spec=SOFTMAX, implementation=name, **masks), *qkv)
        for name in ("pallas_tpu", "reference")
    )
    assert_close(found, wanted, tolerance)


SIZES = [  # queries, keys, offset, causal, of documents
    (2, 2, 0, True, False),
    (129, 129, 0, True, False),
    (128, 256, 128, True, True),
    (30, 300, 0, True, True),  # with keys that no query sees
    (30, 140, 0, False, False),
    (200, 200, -50, True, False),  # the first queries stand before the first key
]


def masks(keys: int, offset: int, causal: bool, packed: bool) -> dict[str, Any]:
    segments = documents(B, keys) if packed else None
    return {"causal": causal, "q_offset": offset, "segment_ids": segments}


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("queries", "keys", "offset", "causal", "packed"), SIZES)
def test_softmax(queries: int, keys: int, offset: int, causal: bool, packed: bool) -> None:
    assert_agreement(operands(queries, keys), **masks(keys, offset, causal, packed))


@pytest.mark.usefixtures("splash_alone")
@pytest.mark.parametrize(("queries", "keys", "offset", "causal", "packed"), SIZES[2:5])
def test_softmax_by_splash_attention(
    queries: int, keys: int, offset: int, causal: bool, packed: bool
) -> None:
    assert_agreement(operands(queries, keys), **masks(keys, offset, causal, packed))


@pytest.mark.usefixtures("splash_alone")
def test_splash_attention_leaves_few_gradients_of_queries_to_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its backward kernel then takes several blocks of keys at a time."""
    monkeypatch.setattr(libraries, "MAX_BLOCK", 128)
    monkeypatch.setattr(libraries, "MAX_PARTS", 2)
    assert libraries._block_sizes(512, 512, K).block_kv_dkv == 256
    assert_agreement(operands(512, 512), causal=True, segment_ids=documents(B, 512))


@pytest.mark.usefixtures("interpreted")
def test_softmax_of_some_heads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 200 has 3 tiles that causal queries see: 3 of 6 heads fit into 9."""
    monkeypatch.setattr(whole_tpu, "MAX_TILES", 9)
    assert_agreement(operands(200, 200, heads=6), causal=True)


@pytest.mark.usefixtures("simulated")
def test_softmax_in_bfloat16() -> None:
    qkv = tuple(x.astype(jnp.bfloat16) for x in operands(200, 200))
    assert_agreement(qkv, BFLOAT16_TOLERANCE, causal=True, segment_ids=documents(B, 200))


@pytest.mark.usefixtures("interpreted")
def test_scores_far_apart_neither_overflow_nor_vanish() -> None:
    q, k, v = operands(200, 200)
    # Of scores up to 4,000 float32 keeps 2e-4, and the code of a pair is their exponential.
    assert_agreement((1e3 * q, k, v), 1e-3, causal=True)


@pytest.mark.parametrize(("length", "packed"), [(17, False), (40, True)])
def test_the_call_of_cudnn_is_the_definition(length: int, packed: bool) -> None:
    """By the same function of JAX on this machine."""
    options = {"causal": packed, "segment_ids": documents(B, length) if packed else None}

    def of_cudnn(*qkv: jax.Array) -> jax.Array:
        return libraries.attend_cudnn(make_request(*qkv, SOFTMAX, **options), "xla")

    qkv = [normal(seed, B, length, H, 8) for seed in range(3)]
    wanted = partial(attend, spec=SOFTMAX, implementation="reference", **options)
    assert_close(*(output_and_gradients(f, *qkv) for f in (of_cudnn, wanted)), CUDNN_TOLERANCE)


def test_jax_lowers_cudnn_s_call_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX asks of the GPU that runs is answered as an H100 would."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91200)
    for name, said in (("check_compute_capability", True), ("is_cuda_compute_capability_equal", 0)):
        monkeypatch.setattr(fused_attention_stablehlo, name, lambda _, said=said: said)

    def loss(*qkv: jax.Array) -> jax.Array:
        request = make_request(*qkv, SOFTMAX, causal=True, segment_ids=documents(B, 40))
        return libraries.attend_cudnn(request).astype(jnp.float32).sum()

    qkv = [normal(seed, B, 40, H, 8).astype(jnp.bfloat16) for seed in range(3)]
    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*qkv)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    for name in ("__cudnn$fmhaScaleBiasSoftmax(", "__cudnn$fmhaScaleBiasSoftmaxBackward("):
        assert name in text
    assert "\\22mask_type\\22: \\22CAUSAL\\22" in text
