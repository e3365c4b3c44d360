"""The reference kernels against the paper's equations written as loops in float64."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention.attend import attend, latent_codes
from hyla_lm.attention.spec import ACTIVATIONS, VARIANTS, AttentionSpec

B, T, H, K, U = 2, 6, 3, 4, 5
EPSILON = 1e-6
# float64 on both sides; sums of ten terms of order 1, whose rounding RMSHead may magnify.
TOLERANCE = 1e-12

PHI: dict[str, Callable[[float], float]] = {
    "identity": lambda x: x,
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: x / 2 * (1 + math.erf(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}

# Functions of a tile have their definition in test_pairwise.py.
SPECS = {
    **{name: spec for name, spec in VARIANTS.items() if spec.pair_network is None},
    **{f"hyla_{phi}": replace(VARIANTS["hyla"], activation=phi) for phi in ACTIVATIONS},
}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


class Case:
    """Random operands of one attention call; documents of 2 and 4 tokens, then of 5 and 1."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.q, self.k = rng.normal(size=(2, B, T, H, K))
        self.v = rng.normal(size=(B, T, H, U))
        self.bias = rng.normal(size=(1, H, T, T))
        self.deep_kernel = rng.normal(size=(H, U, U))
        self.dropout = rng.integers(0, 2, size=(1, 1, T, T)) / 0.5
        self.segment_ids = np.array([[0, 0, 1, 1, 1, 1], [3, 3, 3, 3, 3, 4]])

    def masks(self) -> dict[str, jax.Array | bool]:
        bias, segments = jnp.asarray(self.bias), jnp.asarray(self.segment_ids)
        return {"bias": bias, "segment_ids": segments, "causal": True}


def code_of_query(case: Case, spec: AttentionSpec, b: int, t: int) -> np.ndarray:
    """Eq. 1: the code a_HxS of one query."""
    seen = [s for s in range(t + 1) if case.segment_ids[b, s] == case.segment_ids[b, t]]
    a_HxS = np.zeros((H, T))
    for h in range(H):
        for s in seen:
            score = sum(case.q[b, t, h, i] * case.k[b, s, h, i] for i in range(K))
            a_HxS[h, s] = score / math.sqrt(K) + case.bias[0, h, t, s]
    if spec.normalization.startswith("softmax"):
        for h in range(H):
            total = sum(math.exp(a_HxS[h, s]) for s in seen)
            a_HxS[h, seen] = [math.exp(a_HxS[h, s]) / total for s in seen]
    if spec.normalization.endswith("rms_head"):
        for s in seen:
            mean_square = sum(a_HxS[h, s] ** 2 for h in range(H)) / H
            a_HxS[:, s] /= math.sqrt(mean_square + EPSILON)
    return a_HxS


def output_of_query(case: Case, spec: AttentionSpec, b: int, t: int, a_HxS: np.ndarray):
    """Eq. 4, Eq. 6 and Eq. 10: the output y_HxU of one query, from its code."""
    phi = np.vectorize(PHI[spec.activation])
    y_HxU = np.zeros((H, U))
    for s in range(T):
        if spec.value_network == "linear":
            y_HxU += a_HxS[:, s, None] * phi(case.v[b, s])
            continue
        hidden_U = phi(sum(a_HxS[h, s] * case.v[b, s, h] for h in range(H)))
        if spec.value_depth == 2:
            kernel_UxU = sum(a_HxS[h, s] * case.deep_kernel[h] for h in range(H))
            hidden_U = phi(hidden_U @ kernel_UxU)
        y_HxU += a_HxS[:, s, None] * hidden_U
    return y_HxU


@pytest.mark.parametrize("name", SPECS)
def test_reference_is_the_equations(name: str) -> None:
    case, spec = Case(), SPECS[name]
    expected = np.zeros((B, T, H, U))
    for b in range(B):
        for t in range(T):
            a_HxS = code_of_query(case, spec, b, t) * case.dropout[0, 0, t]
            expected[b, t] = output_of_query(case, spec, b, t, a_HxS)
    actual = attend(
        *(jnp.asarray(x) for x in (case.q, case.k, case.v)),
        spec,
        **case.masks(),
        deep_kernel_HxUxU=jnp.asarray(case.deep_kernel) if spec.value_depth == 2 else None,
        dropout=jnp.asarray(case.dropout),
        implementation="reference",
    )
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_all_normalisations_keep_scale_small_codes_apart() -> None:
    """The 1e-6 under RMSHead's root: a code of size 1e-3 shrinks by sqrt(2), not to 1."""
    q = jnp.full((1, 1, 1, 1), 1e-3)
    code = latent_codes(q, jnp.ones((1, 1, 1, 1)), VARIANTS["hyla"])
    np.testing.assert_allclose(code, 1 / math.sqrt(2), rtol=TOLERANCE)
