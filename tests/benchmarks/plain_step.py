"""`hyla-lm` with a plain loss: logits of all positions at once in float32, differentiated by JAX.

Usage: plain_step.py ARGUMENTS of hyla-lm. What bench_plan.py compares with.
"""

import sys

import jax
import jax.numpy as jnp
import optax

from hyla_lm.cli.main import main
from hyla_lm.model.layers import Head
from hyla_lm.model.loss import CrossEntropy
from hyla_lm.tasks import language_model


def cross_entropy(
    head: Head,
    hidden_BxTxD: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    chunk_length: int,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """See hyla_lm.model.loss.cross_entropy, of which it takes the place; without chunks."""
    assert z_loss == 0.0, "the plain loss has no z-loss: leave LanguageModel.z_loss at 0"
    logits_BxTxV = head.logits(hidden_BxTxD)
    nats_BxT = optax.softmax_cross_entropy_with_integer_labels(logits_BxTxV, target_BxT)
    nats = jnp.sum(weight_BxT * nats_BxT)
    is_right_BxT = jnp.argmax(logits_BxTxV, axis=-1) == target_BxT
    return CrossEntropy(nats, nats, jnp.sum(weight_BxT * is_right_BxT))


if __name__ == "__main__":
    language_model.cross_entropy = cross_entropy
    sys.exit(main())
