"""The blocked kernels equal the reference: outputs, every gradient, at lengths that do not fit."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention import blocked
from hyla_lm.attention.attend import attend
from hyla_lm.attention.linear import chunked
from hyla_lm.attention.request import make_request
from hyla_lm.attention.spec import VARIANTS, AttentionSpec
from tests.attention.comparison import assert_close, documents, normal, output_and_gradients
from tests.model.small_model import QUICK_COMPILE

B, H, K, U = 2, 3, 5, 6
DROPPED = 0.25

# Relative to the largest entry. Both sum the same float32 terms in another order: measured
# differences stay below 1e-6 for outputs and gradients.
OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 2e-4
# The same comparison in float64: 4500 eps, room for sums of 257 terms and RMSHead's quotient.
FLOAT64_TOLERANCE = 1e-12


PRINCIPAL = ("softmax", "linear", "hyla")


@pytest.fixture
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 64, so that rows of 100 have a whole one and a part of one."""
    monkeypatch.setattr(blocked, "BLOCK_SIZE", 64)
    monkeypatch.setattr(chunked, "CHUNK_SIZE", 64)


def operands(q_length: int, k_length: int, spec: AttentionSpec) -> dict[str, jax.Array]:
    """What attention differentiates by, with q scaled so that softmax is neither flat nor hard."""
    x = {
        "q": normal(1, B, q_length, H, K),
        "k": normal(2, B, k_length, H, K),
        "v": normal(3, B, k_length, H, U),
    }
    if spec.value_depth == 2:
        x["deep_kernel"] = normal(4, H, U, U) / U**0.5
    return x


def call(x: dict[str, jax.Array], spec: AttentionSpec, implementation: str, **masks: Any):
    return attend(
        x["q"],
        x["k"],
        x["v"],
        spec,
        bias=x.get("bias"),
        deep_kernel_HxUxU=x.get("deep_kernel"),
        implementation=implementation,
        **masks,
    )


def both_ways(
    x: dict[str, jax.Array], spec: AttentionSpec, implementation: str, **masks: Any
) -> tuple[jax.Array, dict[str, jax.Array]]:
    function = partial(call, spec=spec, implementation=implementation, **masks)
    y, gradients = output_and_gradients(function, x, compiler=QUICK_COMPILE)
    return y, gradients


def assert_implementations_agree(
    x: dict[str, jax.Array],
    spec: AttentionSpec,
    output_tolerance: float = OUTPUT_TOLERANCE,
    gradient_tolerance: float = GRADIENT_TOLERANCE,
    **masks: Any,
) -> None:
    y, gradients = both_ways(x, spec, "blocked", **masks)
    expected, exact = both_ways(x, spec, "reference", **masks)
    assert_close(y, expected, output_tolerance)
    assert_close(gradients, exact, gradient_tolerance)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("length", [1, 257])
@pytest.mark.parametrize("name", PRINCIPAL)
def test_blocked_is_the_reference(name: str, length: int) -> None:
    spec = VARIANTS[name]
    masks = {"causal": True, "segment_ids": documents(B, length)}
    assert_implementations_agree(operands(length, length, spec), spec, **masks)


def test_more_heads_than_are_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "UNROLLED_HEADS", H - 1)
    spec = VARIANTS["hyla"]
    assert_implementations_agree(operands(20, 20, spec), spec, causal=True)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("shape", [(1, 1, 70, 70), (B, H, 1, 70), (1, H, 70, 1)])
def test_bias_broadcasts(shape: tuple[int, ...]) -> None:
    spec = VARIANTS["hyla"]
    x = operands(70, 70, spec) | {"bias": normal(7, *shape)}
    assert_implementations_agree(x, spec, causal=True)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("name", ["softmax", "hyla_deep"])
def test_dropout_multiplies_the_code(name: str) -> None:
    kept = jnp.asarray(np.random.default_rng(8).random((B, H, 70, 70)) > DROPPED)
    spec = VARIANTS[name]
    assert_implementations_agree(
        operands(70, 70, spec), spec, causal=True, dropout=kept / (1 - DROPPED)
    )


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize(
    ("name", "lengths"),
    [("softmax", (90, 30)), ("hyla", (30, 90)), ("hyla", (1, 65))],
    ids=str,
)
def test_queries_and_keys_of_other_lengths(name: str, lengths: tuple[int, int]) -> None:
    spec = VARIANTS[name]
    assert_implementations_agree(operands(*lengths, spec), spec)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("known", [True, False], ids=["static_offset", "traced_offset"])
@pytest.mark.parametrize("name", PRINCIPAL)
def test_offset_queries_are_rows_of_the_whole(name: str, known: bool) -> None:
    spec, (first, end) = VARIANTS[name], (30, 100)
    x, segments = operands(100, 100, spec), documents(B, 100)
    bias = normal(7, 1, H, 100, 100)
    part = x | {"q": x["q"][:, first:end], "bias": bias[:, :, first:end]}

    @partial(jax.jit, static_argnums=(0,) if known else ())
    def rows(offset: int | jax.Array) -> jax.Array:
        masks = {"causal": True, "segment_ids": segments, "q_offset": offset}
        return call(part, spec, "blocked", **masks)

    assert_close(rows(first), whole_reference(name)[:, first:end], OUTPUT_TOLERANCE)


@cache
def whole_reference(name: str) -> np.ndarray:
    """The output of all 100 queries of packed documents, with a bias."""
    x = operands(100, 100, VARIANTS[name]) | {"bias": normal(7, 1, H, 100, 100)}
    masks = {"causal": True, "segment_ids": documents(B, 100)}
    return np.asarray(jax.jit(lambda: call(x, VARIANTS[name], "reference", **masks))())


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("name", VARIANTS)
def test_float64_agrees_to_its_precision(name: str) -> None:
    spec, tolerance = VARIANTS[name], FLOAT64_TOLERANCE
    with jax.enable_x64(True):
        x = operands(257, 257, spec) | {"bias": normal(7, 1, H, 257, 257)}
        x = {name: leaf.astype("float64") for name, leaf in x.items()}
        masks = {"causal": True, "segment_ids": documents(B, 257)}
        assert_implementations_agree(x, spec, tolerance, tolerance, **masks)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("implementation", ["reference", "blocked"])
def test_bfloat16_rounds_only_what_goes_in_and_out(implementation: str) -> None:
    spec = VARIANTS["hyla"]
    x = {name: leaf.astype(jnp.bfloat16) for name, leaf in operands(100, 100, spec).items()}
    exact = {name: leaf.astype(jnp.float32) for name, leaf in x.items()}
    y, gradients = both_ways(x, spec, implementation, causal=True)
    expected, expected_gradients = both_ways(exact, spec, "reference", causal=True)
    assert y.dtype == jnp.bfloat16
    # Rounding once to 8 bits of significand moves an entry by at most 2^-8 of itself.
    assert_close(y.astype(jnp.float32), expected, 2**-8)
    # Each of the two blocks rounds its share of a gradient, and so does their sum.
    assert {x.dtype for x in gradients.values()} == {y.dtype}
    gradients = jax.tree.map(lambda x: x.astype(jnp.float32), gradients)
    assert_close(gradients, expected_gradients, 3 * 2**-8)


@pytest.mark.usefixtures("several_blocks")
@pytest.mark.parametrize("implementation", ["blocked", "reference"])
@pytest.mark.parametrize("name", [*PRINCIPAL, "hyla_softmax", "talking_heads"])
def test_a_query_that_sees_nothing_gets_zeros(name: str, implementation: str) -> None:
    spec, blind = VARIANTS[name], 3
    x = operands(70, 70, spec)
    y, gradients = both_ways(x, spec, implementation, causal=True, q_offset=-blind)
    np.testing.assert_array_equal(y[:, :blind], 0)
    np.testing.assert_array_equal(gradients["q"][:, :blind], 0)
    assert all(jnp.all(jnp.isfinite(leaf)) for leaf in (y, *gradients.values()))
    assert jnp.all(jnp.any(y[:, blind:] != 0, axis=(2, 3)))


@pytest.mark.usefixtures("several_blocks")
def test_causal_mask_skips_the_blocks_it_empties() -> None:
    x = jnp.zeros((1, 4 * 64, 1, 2))
    request = make_request(x, x, x, VARIANTS["linear_rms_head"], causal=True)
    assert len(blocked._starts(request)["T"]) == 4 + 3 + 2 + 1
    assert len(blocked._starts(replace(request, q_offset=None))["T"]) == 16


def temporary_bytes(length: int) -> int:
    """Scratch memory of HYLA compiled forward and backward, B=1, H=8, K=U=64, float32."""

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        y = attend(q, k, v, VARIANTS["hyla"], causal=True, implementation="blocked")
        return jnp.sum(y**2)

    shape = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32)
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(shape, shape, shape).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_is_linear_in_length() -> None:
    """Within the ratio of the lengths, and a tenth more for buffers of fixed size."""
    assert temporary_bytes(2048) <= 4.5 * temporary_bytes(512)
