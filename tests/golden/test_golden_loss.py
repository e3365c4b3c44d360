"""The loss of a language model against an independent implementation, on given logits."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hyla_lm.model.layers import Head
from hyla_lm.model.loss import cross_entropy
from hyla_lm.tasks.language_model import unpack

Load = Callable[[str], dict[str, np.ndarray]]
# A float32 mean of 16 numbers of order 3.
TOLERANCE = 1e-5


def test_targets_and_weights(golden: Load) -> None:
    arrays = golden("lm_loss")
    tokens = jnp.pad(jnp.asarray(arrays["tokens"]), [(0, 0), (0, 1)])
    _, targets, weights, _ = unpack(tokens, bos=0)
    np.testing.assert_array_equal(targets, arrays["nanodo_targets"])
    np.testing.assert_array_equal(weights, arrays["nanodo_weights"])


def test_mean_loss_and_its_gradient_softmax_minus_target(golden: Load) -> None:
    arrays = golden("lm_loss")
    targets, weights = arrays["nanodo_targets"], arrays["nanodo_weights"]

    def objective(logits: jax.Array) -> jax.Array:
        head = Head(jnp.eye(logits.shape[-1]))
        return cross_entropy(head, logits, targets, jnp.asarray(weights), 4).objective

    logits = arrays["logits"].astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    expected = weights[..., None] * (probabilities - np.eye(logits.shape[-1])[targets])
    loss, gradient = jax.value_and_grad(objective)(jnp.asarray(arrays["logits"]))
    np.testing.assert_allclose(loss / weights.sum(), arrays["nanodo_loss"], rtol=TOLERANCE)
    np.testing.assert_allclose(gradient, expected, rtol=TOLERANCE, atol=TOLERANCE)
