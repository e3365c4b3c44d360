"""Chunked cross-entropy against the plain one: values, gradients, dtypes and memory."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from hyla_lm.model import layers, loss
from hyla_lm.model.layers import Head
from hyla_lm.model.loss import CrossEntropy, cross_entropy

B, T, D, V = 2, 7, 4, 11
# float32 sums over 14 tokens of 11 logits of order 1, in two orders.
TOLERANCE = 1e-5


def plain(
    head: Head, hidden: jax.Array, targets: jax.Array, weights: jax.Array, z_loss: float
) -> CrossEntropy:
    """The definition, with all logits at once."""
    return of_logits_by_hand(head.logits(hidden), targets, weights, z_loss)


def of_logits_by_hand(
    logits: jax.Array, targets: jax.Array, weights: jax.Array, z_loss: float
) -> CrossEntropy:
    log_z = jax.nn.logsumexp(logits, axis=-1)
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    nats = jnp.sum(weights * (log_z - picked))
    right = jnp.sum(weights * (picked == logits.max(axis=-1)))
    return CrossEntropy(nats + z_loss * jnp.sum(weights * log_z**2), nats, right)


@pytest.fixture
def inputs() -> tuple[Head, jax.Array, jax.Array, jax.Array]:
    """Head, hidden states, targets, and weights of which some are zero and some not one."""
    rng = np.random.default_rng(0)
    head = Head(np.float32(rng.normal(size=(V, D))), np.float32(rng.normal(size=V)), 0.5)
    weights = rng.choice([0.0, 1.0, 0.5], size=(B, T))
    assert {0.0, 0.5, 1.0} == set(weights.ravel())
    return (
        head,
        np.float32(rng.normal(size=(B, T, D))),
        rng.integers(V, size=(B, T), dtype=np.int32),
        np.float32(weights),
    )


def with_gradients(loss_of: Callable[..., CrossEntropy], *tokens: Any) -> tuple[CrossEntropy, Any]:
    def objective(head: Head, hidden: jax.Array) -> tuple[jax.Array, CrossEntropy]:
        sums = loss_of(head, hidden, *tokens[2:])
        return 3 * sums.objective, sums  # A cotangent other than 1.

    differentiated = jax.jit(jax.value_and_grad(objective, (0, 1), has_aux=True))
    (_, sums), gradients = differentiated(*tokens[:2])
    return sums, gradients


def chunked(chunk_length: int, z_loss: float = 0.0) -> Callable[..., CrossEntropy]:
    return lambda *tokens: cross_entropy(*tokens, chunk_length, z_loss)


def assert_trees_agree(actual: Any, expected: Any, tolerance: float) -> None:
    def agree(a: jax.Array, b: jax.Array) -> None:
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = np.abs(b).max()
        np.testing.assert_allclose(
            np.float32(a), np.float32(b), rtol=tolerance, atol=tolerance * scale
        )

    jax.tree.map(agree, actual, expected)


@pytest.mark.parametrize(("chunk_length", "z_loss"), [(3, 0.1), (T + 1, 0.0)])
def test_chunks_give_the_sums_and_gradients_of_the_whole(
    inputs: tuple, chunk_length: int, z_loss: float
) -> None:
    expected = with_gradients(lambda *tokens: plain(*tokens, z_loss), *inputs)
    actual = with_gradients(chunked(chunk_length, z_loss), *inputs)
    assert_trees_agree(actual, expected, TOLERANCE)
    # The value without a gradient takes another path.
    value = jax.jit(chunked(chunk_length, z_loss))(*inputs)
    assert_trees_agree(value, expected[0], TOLERANCE)


def test_the_form_of_other_devices_is_that_of_cpu(
    inputs: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = with_gradients(chunked(3, 0.1), *inputs)
    for module in (loss, layers):
        monkeypatch.setattr(module, "platform", lambda: "tpu")
    assert_trees_agree(with_gradients(chunked(3, 0.1), *inputs), expected, TOLERANCE)


def test_bfloat16_states_are_scored_in_float32(inputs: tuple) -> None:
    head, hidden, targets, weights = inputs
    low = hidden.astype(jnp.bfloat16)
    expected = with_gradients(lambda *x: plain(*x, 0.0), head, low, targets, weights)
    sums, (d_head, d_hidden) = with_gradients(chunked(3), head, low, targets, weights)
    # Both sides see the same rounded states and kernel, and their logits are float32.
    assert_trees_agree(sums, expected[0], TOLERANCE)
    assert (d_head.kernel_VxD.dtype, d_hidden.dtype) == (jnp.float32, jnp.bfloat16)
    # bfloat16 keeps 8 bits: 2^-8 in each of the chunks' gradients of the kernel.
    assert_trees_agree((d_head, d_hidden), expected[1], 2**-6)


def test_a_token_without_weight_gets_no_gradient(inputs: tuple) -> None:
    weights = inputs[3]
    _, (_, d_hidden) = with_gradients(chunked(3), *inputs)
    moved = np.abs(d_hidden).max(axis=-1) > 0
    np.testing.assert_array_equal(moved, np.asarray(weights) > 0)


@pytest.mark.parametrize("sum_of", ["nats", "correct"])
def test_only_the_objective_carries_a_gradient(inputs: tuple, sum_of: str) -> None:
    head, *tokens = inputs
    gradient = jax.grad(lambda head: getattr(chunked(3)(head, *tokens), sum_of))(head)
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient))


def of_logits(logits: jax.Array, targets: jax.Array) -> CrossEntropy:
    """The loss of given logits: states that a head of ones on the diagonal leaves as they are."""
    head = Head(jnp.eye(logits.shape[-1]))
    return cross_entropy(head, logits, targets, jnp.ones(targets.shape), 1)


def test_a_sure_model_of_large_logits_is_finite() -> None:
    logits = np.float32([[[1e4, -1e4], [-1e4, 1e4]]])
    for targets, nats in (([[0, 1]], 0.0), ([[1, 0]], 4e4)):
        sums = jax.jit(of_logits)(logits, np.int32(targets))
        assert sums.nats == sums.objective == nats
        assert sums.correct == (2 if nats == 0 else 0)


@pytest.mark.parametrize("largest", [0.0, 125.0, 150.0, 1e3])
def test_logits_far_above_their_mean_are_scored_as_any(largest: float) -> None:
    logits = np.float32(np.random.default_rng(1).normal(size=(1, 3, 500)))
    logits[:, 1, 7] = largest
    targets = np.array([[7, 7, 0]])

    def objective(logits: jax.Array) -> jax.Array:
        return of_logits(logits, targets).objective

    value, gradient = jax.jit(jax.value_and_grad(objective))(logits)
    exact = np.asarray(logits, np.float64)
    log_z = np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1)) + exact.max(-1)
    rows, targets_of_row = np.arange(3), np.asarray(targets[0])
    np.testing.assert_allclose(value, (log_z[0] - exact[0, rows, targets_of_row]).sum(), rtol=1e-6)
    expected = np.exp(exact - log_z[..., None])
    expected[0, rows, targets_of_row] -= 1
    # float32 keeps 24 bits of the largest logit, whose exponential is taken.
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("largest", "products"), [(0.0, 1), (125.0, 1), (200.0, 3)])
def test_logits_in_range_are_made_once(
    largest: float, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of range they are made again for the largest, and again to be scored."""
    made: list[None] = []

    def counted(head: Head, logits: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: made.append(None))
        return logits

    monkeypatch.setattr(Head, "logits", counted)
    logits = np.zeros((1, 3, 500), np.float32)
    logits[:, 1, 7] = largest
    jax.jit(lambda *tokens: of_logits(*tokens))(logits, np.zeros((1, 3), np.int32))
    jax.effects_barrier()
    assert len(made) == products * 3


@pytest.mark.parametrize("cap", [1e-3, 300.0, 1e6])
def test_capped_logits_are_those_of_the_formula(cap: float) -> None:
    """Though logits before the cap be far out of range."""
    rng = np.random.default_rng(2)
    head = Head(np.float32(rng.normal(size=(50, D))), np.float32(rng.normal(size=50)), 0.5, cap)
    size = np.array([0.1, 1, 20, 1e3])
    hidden = np.float32(rng.normal(size=(1, 4, D)) * size[:, None])
    targets, weights = np.array([[3, 7, 0, 49]]), np.float32([[1.0, 0.5, 1.0, 2.0]])

    def formula(head: Head, hidden: jax.Array) -> CrossEntropy:
        raw = 0.5 * hidden @ head.kernel_VxD.T + head.bias_V
        return of_logits_by_hand(cap * jnp.tanh(raw / cap), targets, weights, 0.1)

    expected = with_gradients(formula, head, hidden)
    found = with_gradients(chunked(4, 0.1), head, hidden, targets, weights)
    assert_trees_agree(found, expected, TOLERANCE)


def sizes_of_arrays(jaxpr: Any) -> Iterator[int]:
    """The number of elements of every array that a program makes, nested programs' too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.size for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from sizes_of_arrays(inner)


def test_no_array_holds_the_logits_of_more_than_a_chunk() -> None:
    def step(kernel: jax.Array, hidden: jax.Array, targets: jax.Array) -> Any:
        def objective(kernel: jax.Array, hidden: jax.Array) -> jax.Array:
            weights = jnp.ones(targets.shape)
            return cross_entropy(Head(kernel), hidden, targets, weights, 16).objective

        return jax.value_and_grad(objective, (0, 1))(kernel, hidden)

    length, vocabulary, width = 256, 512, 8
    inputs = jnp.zeros((vocabulary, width)), jnp.zeros((B, length, width))
    program = jax.make_jaxpr(step)(*inputs, jnp.zeros((B, length), jnp.int32))
    assert max(sizes_of_arrays(program.jaxpr)) == B * 16 * vocabulary
