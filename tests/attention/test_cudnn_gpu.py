"""Softmax by cuDNN: what it computes, by the same function of JAX on a CPU; that JAX lowers it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.cudnn import fused_attention_stablehlo

from hyla_lm.attention.attend import AttentionSpec, Request, make_request
from hyla_lm.attention.reference import attend_block
from hyla_lm.attention.softmax.libraries import attend_cudnn, unsupported_by_cudnn

SPEC = AttentionSpec("softmax", "linear", "relu")
# Sums of up to 40 products in another order, in float32.
TOLERANCE = 3e-6


def request(q: jax.Array, k: jax.Array, v: jax.Array, **options: Any) -> Request:
    return make_request(q, k, v, SPEC, **options)


def qkv(length: int, dtype: str = "float32") -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(2, length, 3, 8)).astype(dtype)) for _ in range(3)]


def documents(length: int) -> Any:
    """Two rows of documents, the second of one token each after the first."""
    return np.int32([np.arange(length) // 7, np.maximum(np.arange(length) - 9, 0)])


@pytest.mark.parametrize(("length", "packed"), [(17, False), (40, True)])
def test_it_is_the_definition(length: int, packed: bool) -> None:
    options = {"causal": packed, "segment_ids": documents(length) if packed else None}

    def outputs(run: Any) -> list[jax.Array]:
        @jax.jit
        def both(*operands: jax.Array) -> list[jax.Array]:
            y, pull_back = jax.vjp(lambda *x: run(request(*x, **options)), *operands)
            return [y, *pull_back(jnp.cos(y))]

        return both(*qkv(length))

    found, expected = outputs(partial(attend_cudnn, implementation="xla")), outputs(attend_block)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=TOLERANCE)


def test_jax_lowers_it_for_cuda_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """What JAX asks of the GPU that runs is answered as an H100 would."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91200)
    for name, said in (("check_compute_capability", True), ("is_cuda_compute_capability_equal", 0)):
        monkeypatch.setattr(fused_attention_stablehlo, name, lambda _, said=said: said)

    def loss(*operands: jax.Array) -> jax.Array:
        options = {"causal": True, "segment_ids": documents(40)}
        return attend_cudnn(request(*operands, **options)).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*qkv(40, "bfloat16"))
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    kind = "ScaleBiasSoftmax"
    assert f"__cudnn$fmha{kind}(" in text and f"__cudnn$fmha{kind}Backward(" in text
    assert "\\22mask_type\\22: \\22CAUSAL\\22" in text


def test_values_of_another_size_are_left_to_other_kernels() -> None:
    q, k, v = qkv(40, "bfloat16")
    assert unsupported_by_cudnn(request(q, k, v)) == ""
    assert unsupported_by_cudnn(request(q, k, v[..., :4])) == "values of another size than 8"
