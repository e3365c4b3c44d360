"""Muon against its formula in plain numpy, what it trains, and how its state is laid out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.optim import OptimizerConfig, make_optimizer

MUON = OptimizerConfig(optimizer="muon", weight_decay=0.1)
RATE = 0.5
# Fifteen products of float32 matrices; a wrong axis, momentum or size is off by 1e-1.
RELATIVE, ABSOLUTE = 1e-3, 1e-4
SIZES = dict(num_layers=2, model_dim=8, num_heads=2, head_dim=4, mlp_dim=12, num_experts=3)


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
    if kind[0] in ("query", "key", "value"):
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
        ("feedforward/up/kernel", (6, 10)),
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
    state = optimizer.init(params)
    for gradient, expected in zip(gradients, muon_updates(path, parameter, gradients), strict=True):
        given = tree_of(path, jnp.asarray(gradient, jnp.float32))
        found, state = optimizer.update(given, state, params)
        [update] = jax.tree.leaves(found)
        np.testing.assert_allclose(update, expected, rtol=RELATIVE, atol=ABSOLUTE)
