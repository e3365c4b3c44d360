"""Muon against its formula in plain numpy, what it trains, and how its state is laid out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model.config import Features, Tokens
from hyla_lm.muon import axes_of
from hyla_lm.optim import OptimizerConfig, make_optimizer
from hyla_lm.parallel.sharding import parameter_spec, path_of
from tests.optim.small_params import params_of

MUON = OptimizerConfig(optimizer="muon", weight_decay=0.1)
RATE = 0.5
# Fifteen products of float32 matrices; a wrong axis, momentum or size is off by 1e-1.
RELATIVE, ABSOLUTE = 1e-3, 1e-4


def newton_schulz(matrix: np.ndarray) -> np.ndarray:
    """Five steps of Keller Jordan's polynomial from the matrix over its Frobenius norm."""
    x = matrix / np.sqrt(np.sum(matrix**2))
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def matrices_of(path: str, parameter: np.ndarray) -> list[np.ndarray]:
    """Views of the parameter's matrices, inputs x outputs."""
    kind = path.split("/")[-2:]
    if kind[0] in ("query", "key", "value") or path.startswith("attention/gate"):
        return [parameter.reshape(len(parameter), -1)]
    if kind[0] == "out" or kind[1] == "deep_kernel":
        return [parameter.reshape(-1, parameter.shape[-1])]
    return list(parameter) if parameter.ndim == 3 else [parameter]


def muon_updates(path: str, parameter: np.ndarray, gradients: list[np.ndarray]) -> list[np.ndarray]:
    """The updates of a fixed parameter, by the formula: Nesterov momentum of 0.95, size 0.2."""
    momentum, updates = np.zeros_like(parameter), []
    for count, gradient in enumerate(gradients, start=1):
        momentum = 0.95 * momentum + 0.05 * gradient
        ahead = 0.95 * momentum / (1 - 0.95 ** (count + 1)) + 0.05 * gradient / (1 - 0.95**count)
        update = np.empty_like(parameter)
        parts = zip(matrices_of(path, update), matrices_of(path, ahead), strict=True)
        for part, matrix in parts:
            part[:] = 0.2 * np.sqrt(max(matrix.shape)) * newton_schulz(matrix)
        updates.append(-RATE * (update + 0.1 * parameter))
    return updates


def drawn(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def tree_of(path: str, leaf: Any) -> Any:
    for name in reversed(path.split("/")):
        leaf = {name: leaf}
    return leaf


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("feedforward/down/kernel", (10, 6)),
        ("attention/query/kernel", (6, 4, 2)),
        ("attention/out/kernel", (4, 2, 6)),
        ("attention/deep_kernel", (4, 3, 3)),
        ("feedforward/up", (3, 6, 10)),
    ],
)
def test_two_updates_are_those_of_the_formula(path: str, shape: tuple[int, ...]) -> None:
    parameter, gradients = drawn(0, *shape), [drawn(1, *shape), drawn(2, *shape)]
    optimizer = make_optimizer(MUON, lambda _: jnp.float32(RATE))
    params = tree_of(path, jnp.asarray(parameter, jnp.float32))
    state, update_of = optimizer.init(params), jax.jit(optimizer.update)
    for gradient, expected in zip(gradients, muon_updates(path, parameter, gradients), strict=True):
        given = tree_of(path, jnp.asarray(gradient, jnp.float32))
        found, state = update_of(given, state, params)
        [update] = jax.tree.leaves(found)
        np.testing.assert_allclose(update, expected, rtol=RELATIVE, atol=ABSOLUTE)


@pytest.mark.parametrize(
    ("io", "fields", "others"),
    [
        (Tokens(7), {"positions": "relative"}, {"embed/table", "attention/relative_bias"}),
        (
            Tokens(7),
            {"positions": "learned", "tie_embeddings": False},
            {"embed/table", "position_embed/table", "head/kernel"},
        ),
        (Tokens(7), {"feedforward": "moe"}, {"embed/table", "feedforward/gate"}),
        (Tokens(7), {"gated_attention": True, "qk_norm": True}, {"embed/table"}),
        (Features(3, 2), {"feedforward": "swiglu"}, {"embed/kernel", "head/kernel"}),
        (Tokens(7), {"attention": "hyla_deep", "scan_layers": True}, {"embed/table"}),
    ],
)
def test_muon_trains_all_matrices_of_hidden_layers_and_no_others(
    io: Tokens | Features, fields: dict[str, Any], others: set[str]
) -> None:
    params = params_of(io, **fields)
    found = set()
    for path, _ in jax.tree_util.tree_leaves_with_path(params):
        if axes_of(path_of(path)) is None:
            found.add("/".join(path_of(path).split("/")[-2:]))
    one_dimensional = {name for name in found if name.endswith(("/bias", "/scale"))}
    assert found - one_dimensional == others


def test_a_matrix_has_one_moment_that_is_split_as_it_is() -> None:
    params = params_of(Tokens(7), attention="hyla_deep")
    state = jax.eval_shape(make_optimizer(MUON, lambda _: 1.0).init, params)
    mesh = jax.sharding.AbstractMesh((1, 2, 2), ("data", "fsdp", "model"))
    moments: dict[str, list[Any]] = {}
    own = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        _, found, name = path_of(path).partition("/mu/")
        name = name if found else path_of(path).partition("/nu/")[2]
        moments.setdefault(name, []).append((path_of(path), leaf))
    assert {leaf.size for _, leaf in moments.pop("")} == {1, 3}, "counts, and the polynomial"
    assert moments.keys() == own.keys()
    for name, parameter in own.items():
        assert len(moments[name]) == (1 if axes_of(name) else 2), name
        for path, leaf in moments[name]:
            assert leaf.shape == parameter.shape
            spec = parameter_spec(f"params/{name}", parameter.shape, mesh)
            assert parameter_spec(f"opt_state/{path}", leaf.shape, mesh) == spec
