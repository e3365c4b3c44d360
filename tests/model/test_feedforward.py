"""The mixture of experts by its formula: it routes to the top k only."""

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.model.layers import MixtureOfExperts

B, T, D, F, E = 2, 5, 6, 7, 4
FLOAT32 = jnp.dtype("float32")
# float32 sums of at most D * E products of order 1, in another order.
TOLERANCE = 1e-5


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.float32(np.random.default_rng(seed).normal(size=shape)))


X = normal(0, B, T, D)
EXPERTS = {"gate": normal(1, D, E), "up": normal(2, E, D, F), "down": normal(3, E, F, D)}


def gelu(x: jax.Array) -> jax.Array:
    return x / 2 * (1 + jnp.tanh(jnp.sqrt(2 / jnp.pi) * (x + 0.044715 * x**3)))


def mixture(experts_per_token: int) -> MixtureOfExperts:
    return MixtureOfExperts(F, E, experts_per_token, FLOAT32)


def expert_output(expert: int) -> jax.Array:
    return gelu(X @ EXPERTS["up"][expert]) @ EXPERTS["down"][expert]


def test_a_token_is_routed_to_its_top_k_experts() -> None:
    k = 2
    weights = np.asarray(mixture(k).gate_weights(X, EXPERTS["gate"]))
    logits = np.asarray(X @ EXPERTS["gate"])
    chosen = np.argsort(-logits, axis=-1)[..., :k]
    assert (np.count_nonzero(weights, axis=-1) == k).all()
    assert (np.take_along_axis(weights, chosen, -1) > 0).all()
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=TOLERANCE)


def test_all_experts_chosen_is_the_dense_mixture() -> None:
    weights = jax.nn.softmax(X @ EXPERTS["gate"], axis=-1)
    expected = sum(weights[..., e, None] * expert_output(e) for e in range(E))
    actual = mixture(E).apply({"params": EXPERTS}, X)
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE, atol=TOLERANCE * 10)


def test_experts_start_with_the_variance_of_dense_layers() -> None:
    params = MixtureOfExperts(256, 8, 2, FLOAT32).init(jax.random.key(0), normal(4, 1, 1, 64))
    up, down = params["params"]["up"], params["params"]["down"]
    # 131072 draws: the sample deviation is within 0.3 % of the true one.
    np.testing.assert_allclose(jnp.std(up), 64**-0.5, rtol=0.02)
    np.testing.assert_allclose(jnp.std(down), 256**-0.5, rtol=0.02)
