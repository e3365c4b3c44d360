"""The TPU kernel equals the reference, interpreted in memory that starts as NaN."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import attend
from hyla_lm.attention.hyla import pallas_tpu
from hyla_lm.attention.lanes import problem_of
from hyla_lm.attention.request import make_request
from hyla_lm.attention.spec import VARIANTS, AttentionSpec
from tests.attention.comparison import assert_close, documents, normal, output_and_gradients

# Relative to the largest entry: both sum the same float32 terms in another order. The gradient of
# RMSHead grows as 1 / |s| where all scores of a pair are small, and with it the rounding of s.
OUTPUT_TOLERANCE = 1e-5
GRADIENT_TOLERANCE = 2e-4
# bfloat16 keeps 8 bits. An entry of y, a sum of products of three rounded terms, is within 2 % of
# the largest. Gradients sum products of up to five and go through RMSHead: reference and kernel err
# by 2 to 3 % in root mean square. A pair wrongly hidden or seen is one of the about 65 that a query
# sees, so it changes the query's gradient by 12 %, and there is one for many queries.
ROUNDED_OUTPUT_TOLERANCE = 0.02
ROUNDED_GRADIENT_TOLERANCE = 0.04
HYLA = VARIANTS["hyla"]
LINEAR_CODE = VARIANTS["hyla_no_rms_head"]
pytestmark = pytest.mark.usefixtures("interpreted")


@dataclass(frozen=True)
class Case:
    length: int
    heads: int = 3
    key_dim: int = 5
    value_dim: int = 6
    spec: AttentionSpec = HYLA
    causal: bool = True
    segments: bool = False
    keys: int = 0
    offset: int = 0
    batch: int = 1

    def __str__(self) -> str:
        return f"T{self.length}-H{self.heads}-K{self.key_dim}-U{self.value_dim}"

    @property
    def documents(self) -> jax.Array | None:
        return documents(self.batch, self.keys or self.length) if self.segments else None


CASES = [
    Case(1, heads=1, spec=LINEAR_CODE),  # RMSHead of one score is its sign, without a gradient
    Case(130, heads=2, keys=260, offset=100),
    Case(128, heads=8, key_dim=16, value_dim=32),
    Case(100, heads=2, value_dim=100),
    Case(200, heads=9, key_dim=7, value_dim=33, segments=True, batch=2),
    Case(100, heads=32, key_dim=4, value_dim=16, spec=VARIANTS["hyla_no_nonlinearity"]),
    Case(100, spec=replace(HYLA, activation="sigmoid")),
]


def operands(case: Case) -> tuple[jax.Array, jax.Array, jax.Array]:
    keys = case.keys or case.length
    return (
        normal(1, case.batch, case.length, case.heads, case.key_dim),
        normal(2, case.batch, keys, case.heads, case.key_dim),
        normal(3, case.batch, keys, case.heads, case.value_dim),
    )


def run(case: Case, implementation: str, *qkv: jax.Array, offset: jax.Array | None = None):
    return attend(
        *qkv,
        case.spec,
        causal=case.causal,
        segment_ids=case.documents,
        q_offset=case.offset if offset is None else offset,
        implementation=implementation,
    )


def assert_agreement(case: Case) -> None:
    (y, *gradients), (expected, *exact) = (
        output_and_gradients(partial(run, case, name), *operands(case))
        for name in ("pallas_tpu", "reference")
    )
    assert_close(y, expected, OUTPUT_TOLERANCE)
    assert_close(gradients, exact, GRADIENT_TOLERANCE)


@pytest.mark.usefixtures("simulated")
def test_a_linear_code_of_all_keys() -> None:
    spec = replace(LINEAR_CODE, activation="gelu")
    assert_agreement(Case(20, keys=140, spec=spec, causal=False))


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients(case: Case) -> None:
    assert_agreement(case)


@pytest.mark.full
def test_gradient_in_several_spans_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas_tpu, "DQ_BYTES", 1)
    assert_agreement(Case(260, heads=2, keys=300, offset=20))


@pytest.mark.parametrize(
    ("causal", "offset", "keys"),
    [(True, 130, [3, 4, 5]), (False, 130, [5] * 3), (True, None, [5] * 3)],
)
def test_a_span_takes_the_keys_that_it_may_see(
    causal: bool, offset: int | None, keys: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last query of the first span stands at 257, in the third block of keys."""
    monkeypatch.setattr(pallas_tpu, "DQ_BYTES", 1)
    q, k = jnp.zeros((1, 3 * 128, 2, 5)), jnp.zeros((1, 5 * 128, 2, 5))
    request = replace(make_request(q, k, k, HYLA, causal=causal), q_offset=offset)
    spans = list(pallas_tpu._spans(problem_of(request)))
    assert [first for first, _ in spans] == [0, 1, 2]
    assert [span.key_blocks for _, span in spans] == keys
    assert [span.query_blocks for _, span in spans] == [1] * 3


@pytest.mark.parametrize("length", [128, 130])
def test_offset_known_only_at_run_time(length: int) -> None:
    """The last of 128 queries stands in another block of keys than the first."""
    case = Case(length, heads=2, keys=260, offset=100)
    traced = jax.jit(lambda offset: run(case, "pallas_tpu", *operands(case), offset=offset))
    expected = run(case, "reference", *operands(case))
    assert_close(traced(jnp.int32(100)), expected, OUTPUT_TOLERANCE)


def seen(case: Case) -> jax.Array:
    """Whether a query sees a key: batch x 1 x queries x keys, or 1 instead of a row each."""
    causal = np.tri(case.length, case.keys or case.length, case.offset, dtype=bool)
    ids = case.documents
    if ids is None:
        return jnp.asarray(causal)[None, None]
    of_queries = ids[:, case.offset : case.offset + case.length]
    return (causal & (of_queries[:, :, None] == ids[:, None]))[:, None]


def rounded_reference(case: Case, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """What XLA makes of the reference on TPU: every product rounds its operands to bfloat16."""

    def product(formula: str, *terms: jax.Array) -> jax.Array:
        rounded = (term.astype(jnp.bfloat16) for term in terms)
        return jnp.einsum(formula, *rounded, preferred_element_type=jnp.float32)

    s = product("bthk,bshk->bhts", q * q.shape[-1] ** -0.5, k)
    s = jnp.where(seen(case), s, 0)
    a = s * jax.lax.rsqrt(jnp.mean(s**2, axis=1, keepdims=True) + 1e-6)
    z = jax.nn.relu(product("bhts,bshu->btsu", a, v))
    return product("bhts,btsu->bthu", a, z)


def in_float64(case: Case, dtype: str) -> list[np.ndarray]:
    """y and each gradient of operands that were rounded to a dtype."""
    with jax.enable_x64(True):
        qkv = (x.astype(dtype).astype("float64") for x in operands(case))
        exact = output_and_gradients(partial(run, case, "reference"), *qkv)
        return [np.asarray(x) for x in exact]


def errors_against_float64(case: Case, dtype: str) -> list[tuple[np.ndarray, ...]]:
    """Errors of y and each gradient: the kernel's, those of `rounded_reference`, and the truth."""
    qkv = [x.astype(dtype) for x in operands(case)]
    kernel = output_and_gradients(partial(run, case, "pallas_tpu"), *qkv)
    rounded = output_and_gradients(partial(rounded_reference, case), *qkv)
    return [
        (np.float64(got) - expected, np.float64(plain) - expected, expected)
        for got, plain, expected in zip(kernel, rounded, in_float64(case, dtype), strict=True)
    ]


def root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def test_error_of_float32() -> None:
    """Of packed rows, with keys before the first query."""
    case = Case(100, key_dim=16, value_dim=15, keys=140, offset=40, segments=True, batch=2)
    kernel = output_and_gradients(partial(run, case, "pallas_tpu"), *operands(case))
    for got, exact in zip(kernel, in_float64(case, "float32"), strict=True):
        assert np.max(np.abs(got - exact)) <= 1e-5 * np.max(np.abs(exact))


def test_errors_are_the_reference_s() -> None:
    """Every product rounds its operands as the reference rounds them, in rows of documents.

    y is rounded once more as it is laid out and errs as the reference's rounded y. Within 1 %.
    """
    case = Case(130, heads=7, key_dim=16, value_dim=61, keys=140, offset=10, segments=True)
    (error, plain, exact), *gradients = errors_against_float64(case, "bfloat16")
    rounded = np.float64(jnp.asarray(plain + exact).astype(jnp.bfloat16)) - exact
    assert root_mean_square(error) <= root_mean_square(rounded) * 1.01
    assert root_mean_square(plain) <= ROUNDED_OUTPUT_TOLERANCE * root_mean_square(exact)
    for error, plain, exact in gradients:
        assert root_mean_square(error) <= root_mean_square(plain) * 1.01
        assert root_mean_square(plain) <= ROUNDED_GRADIENT_TOLERANCE * root_mean_square(exact)


@pytest.mark.full
def test_codes_that_read_out_are_others() -> None:
    """A gated readout's codes make z and read it out differently; its weights have a gradient."""
    spec, case = VARIANTS["hyla_gated"], Case(100, heads=8, key_dim=8, value_dim=64)
    qkv = [x.astype(jnp.bfloat16) for x in operands(case)]
    weight = 0.5 * normal(7, 8, 8)
    dy = normal(6, 1, 100, 8, 64).astype(jnp.bfloat16)

    def outputs(implementation: str, dtype: Any) -> list[jax.Array]:
        def attention(*x: jax.Array) -> jax.Array:
            options = {"weights": {"gate": x[3]}, "implementation": implementation}
            return attend(*x[:3], spec, causal=True, **options)

        y, pull_back = jax.vjp(attention, *(x.astype(dtype) for x in qkv), weight)
        return [y, *pull_back(dy.astype(dtype))]

    y, *gradients = outputs("pallas_tpu", jnp.bfloat16)
    exact_y, *exact = outputs("reference", jnp.float32)
    assert_close(y.astype(jnp.float32), exact_y, ROUNDED_OUTPUT_TOLERANCE)
    for got, gradient in zip(gradients, exact, strict=True):
        error = np.float64(got) - np.float64(gradient)
        limit = ROUNDED_GRADIENT_TOLERANCE * root_mean_square(np.float64(gradient))
        assert root_mean_square(error) <= limit
