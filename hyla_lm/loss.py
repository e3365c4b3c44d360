"""Cross-entropy over a vocabulary, in chunks, with the gradient taken on the way forward.

A full BxTxV array never exists: each chunk's logits are made, scored, differentiated and dropped.
Since the loss is one number, the gradients wait for its cotangent as a BxTxD array and the head's
own parameters, and nothing is computed twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

LogitsFn = Callable[[Any, jax.Array], jax.Array]


class CrossEntropy(NamedTuple):
    """Weighted sums over tokens; only `objective` carries a gradient."""

    objective: jax.Array
    nats: jax.Array
    correct: jax.Array


def cross_entropy(
    logits_of: LogitsFn,
    head_params: Any,
    hidden_BxTxD: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    chunk_length: int,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Sums of -log p(target) in nats and of right guesses, `chunk_length` positions at a time.

    The objective adds z_loss * log(Z)^2 a token. `logits_of(head_params, hidden)` gives float32.
    """
    batch, length, _ = hidden_BxTxD.shape
    chunk = min(chunk_length, length)
    pad = -length % chunk

    def in_chunks(x: jax.Array) -> jax.Array:
        padded = jnp.pad(x, [(0, 0), (0, pad)] + [(0, 0)] * (x.ndim - 2))
        return padded.reshape(batch, -1, chunk, *x.shape[2:]).swapaxes(0, 1)

    targets, weights = in_chunks(target_BxT), in_chunks(weight_BxT.astype(jnp.float32))

    def score(head: Any, hidden_BxCxD: jax.Array, target_BxC: jax.Array, weight_BxC: jax.Array):
        logits_BxCxV = logits_of(head, hidden_BxCxD).astype(jnp.float32)
        log_z_BxC = jax.nn.logsumexp(logits_BxCxV, axis=-1)
        picked_BxC = jnp.take_along_axis(logits_BxCxV, target_BxC[..., None], axis=-1)[..., 0]
        nats = jnp.sum(weight_BxC * (log_z_BxC - picked_BxC))
        penalty = z_loss * jnp.sum(weight_BxC * jnp.square(log_z_BxC))
        correct = jnp.sum(weight_BxC * (picked_BxC >= jnp.max(logits_BxCxV, axis=-1)))
        return nats + penalty, (nats, correct)

    @jax.custom_vjp
    def total(head: Any, hidden: jax.Array) -> CrossEntropy:
        def add_chunk(sums: CrossEntropy, tokens):
            objective, (nats, correct) = score(head, *tokens)
            return jax.tree.map(jnp.add, sums, CrossEntropy(objective, nats, correct)), None

        return jax.lax.scan(add_chunk, _zeros(), (hidden, targets, weights))[0]

    def forward(head: Any, hidden: jax.Array):
        def add_chunk(carry, tokens):
            sums, head_grads = carry
            value_and_grad = jax.value_and_grad(score, argnums=(0, 1), has_aux=True)
            (objective, (nats, correct)), (d_head, d_hidden) = value_and_grad(head, *tokens)
            sums = jax.tree.map(jnp.add, sums, CrossEntropy(objective, nats, correct))
            return (sums, jax.tree.map(jnp.add, head_grads, d_head)), d_hidden

        start = (_zeros(), jax.tree.map(jnp.zeros_like, head))
        (sums, head_grads), d_hidden = jax.lax.scan(add_chunk, start, (hidden, targets, weights))
        return sums, (head_grads, d_hidden)

    def backward(saved, cotangent: CrossEntropy):
        return jax.tree.map(lambda grad: (cotangent.objective * grad).astype(grad.dtype), saved)

    total.defvjp(forward, backward)
    sums = total(head_params, in_chunks(hidden_BxTxD))
    return CrossEntropy(
        sums.objective, jax.lax.stop_gradient(sums.nats), jax.lax.stop_gradient(sums.correct)
    )


def _zeros() -> CrossEntropy:
    zero = jnp.zeros((), jnp.float32)
    return CrossEntropy(zero, zero, zero)
