"""Attention by functions of a tile: outputs and gradients of every kernel, inputs and weights."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.attention import blocked
from hyla_lm.attention.attend import attend
from hyla_lm.attention.spec import PAIR_NETWORKS, VARIANTS, AttentionSpec
from hyla_lm.model.config import Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import path_of
from tests.attention.comparison import assert_close, output_and_gradients
from tests.model.small_model import VOCABULARY, small, tokens

B, T, H, K, U = 2, 43, 3, 5, 6
SPECS = {
    **{name: VARIANTS[name] for name in ("talking_heads", "query_composed", "hyla_gated")},
    "gated_values": AttentionSpec("gated_readout", "linear"),  # tiles without whole rows
}
# Relative to the largest entry; float32 sums of the same terms in another order.
TOLERANCE = 2e-5


def operands(spec: AttentionSpec, length: int, rows: int) -> dict[str, Any]:
    key = iter(jax.random.split(jax.random.key(0), 9))
    shapes = {"q": (rows, length, H, K), "k": (rows, length, H, K), "v": (rows, length, H, U)}
    arrays: dict[str, Any] = {n: jax.random.normal(next(key), s) for n, s in shapes.items()}
    network = PAIR_NETWORKS[spec.normalization]
    arrays["weights"] = {
        name: 0.5 * jax.random.normal(next(key), (*([rows, length] * weight.by_query), H, H))
        for name, weight in network.weights.items()
    }
    return arrays


def by_hand(spec: AttentionSpec, x: dict[str, Any], segments: jax.Array) -> jax.Array:
    """The definition, written out without the library."""
    t = x["q"].shape[1]
    s = jnp.einsum("bthk,bshk->bhts", x["q"], x["k"]) / np.sqrt(K)
    seen = jnp.tril(jnp.ones((t, t), bool)) & (segments[:, :, None] == segments[:, None])
    seen = seen[:, None]

    def mixed(name: str, a: jax.Array) -> jax.Array:
        w = x["weights"][name]
        pattern = "btgh,bhts->bgts" if w.ndim == 4 else "gh,bhts->bgts"
        return jnp.einsum(pattern, w, a)

    def rms(a: jax.Array) -> jax.Array:
        return a / jnp.sqrt((a**2).mean(1, keepdims=True) + 1e-6)

    name = spec.normalization
    if name in ("talking_heads", "query_composed"):
        a = jax.nn.softmax(jnp.where(seen, s + mixed("before", s), -1e30), -1)
        a = a + mixed("after", a)
        read = a
    else:
        a = rms(s)
        read = a * jax.nn.sigmoid(mixed("gate", a))
    a, read = jnp.where(seen, a, 0), jnp.where(seen, read, 0)
    if spec.value_network == "linear":
        return jnp.einsum("bhts,bshu->bthu", read, x["v"])
    z = jax.nn.relu(jnp.einsum("bhts,bshu->btsu", a, x["v"]))
    return jnp.einsum("bhts,btsu->bthu", read, z)


def segments(length: int, rows: int) -> jax.Array:
    return jnp.broadcast_to(jnp.arange(length) // 30, (rows, length))


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "BLOCK_SIZE", 16)


@pytest.mark.parametrize("implementation", ["reference", "blocked"])
@pytest.mark.parametrize("name", SPECS)
def test_output_and_every_gradient_equal_the_definition(name: str, implementation: str) -> None:
    assert_is_the_definition(SPECS[name], implementation, T, B)


def assert_is_the_definition(
    spec: AttentionSpec, implementation: str, length: int, rows: int
) -> None:
    x, documents = operands(spec, length, rows), segments(length, rows)

    def ours(x: dict[str, Any]) -> jax.Array:
        return attend(
            *(x["q"], x["k"], x["v"], spec),
            causal=True,
            segment_ids=documents,
            weights=x["weights"],
            implementation=implementation,
        )

    def wanted(x: dict[str, Any]) -> jax.Array:
        return by_hand(spec, x, documents)

    assert_close(*(output_and_gradients(function, x) for function in (ours, wanted)), TOLERANCE)


def test_weights_left_out_are_0() -> None:
    x = operands(SPECS["talking_heads"], T, B)
    plain = attend(x["q"], x["k"], x["v"], AttentionSpec("softmax", "linear"))
    assert_close(attend(x["q"], x["k"], x["v"], SPECS["talking_heads"]), plain, TOLERANCE)


@pytest.mark.parametrize("name", SPECS)
def test_tpu_kernels_equal_the_definition(name: str, request: pytest.FixtureRequest) -> None:
    """One row where a kernel is interpreted slowly; two rows of HYLA: test_pallas_tpu.py."""
    request.getfixturevalue("simulated" if name == "query_composed" else "interpreted")
    rows = 1 if SPECS[name].value_network == "hypernetwork" else B
    assert_is_the_definition(SPECS[name], "pallas_tpu", 140, rows)


@pytest.mark.parametrize("name", ["query_composed", "hyla_gated"])
def test_a_layer_learns_its_weights(name: str) -> None:
    model = Decoder(small(attention=name, num_layers=1), Tokens(VOCABULARY))
    params = jax.jit(model.init)(jax.random.key(0), tokens())

    def loss(params: Any) -> jax.Array:
        return jnp.square(model.apply(params, tokens())).sum()

    gradients = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params))
    found = {path_of(path): np.abs(x).max() for path, x in gradients}
    of_weights = {path: size for path, size in found.items() if "pair_" in path}
    assert len(of_weights) == len(VARIANTS[name].pair_network.weights)  # type: ignore[union-attr]
    assert min(of_weights.values()) > 0
