"""Cross-entropy over a vocabulary, in chunks, with the gradient taken on the way forward.

A full BxTxV array never exists: each chunk's logits are made, scored, differentiated and dropped.
Since the loss is one number, the gradients wait for its cotangent as a BxTxD array and the head's
own parameters, and nothing is computed twice.

Exponentials are relative to a level known before the logits, so that XLA sums them as the product
makes them. Relative to the largest logit they would need a second pass over the chunk, a fifth of
the whole loss on TPU v5e. The level is HEADROOM above the mean logit; if a sum leaves the range of
float32, everything is computed again relative to the largest. Under a soft cap the mean is capped
as logits are, which leaves it below the largest; with a cap of up to 64, no sum leaves the range.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hyla_lm.attention.chips import platform
from hyla_lm.model.layers import Head

# No mean is above the largest. From 50 above the mean, exp overflows for no logit up to 128 above
# the mean, and underflows for none within 37 of the largest.
HEADROOM = 50.0


class CrossEntropy(NamedTuple):
    """Weighted sums over tokens; only `objective` carries a gradient."""

    objective: jax.Array
    nats: jax.Array
    correct: jax.Array


def cross_entropy(
    head: Head,
    hidden_BxTxD: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    chunk_length: int,
    z_loss: float = 0.0,
) -> CrossEntropy:
    """Sums -log p(target) in nats and right guesses, `chunk_length` positions at a time.

    The objective adds z_loss * log(Z)^2 a token.
    """
    chunk = min(chunk_length, hidden_BxTxD.shape[1])
    targets = _in_chunks(target_BxT, chunk)
    weights = _in_chunks(weight_BxT.astype(jnp.float32), chunk)

    def differentiate(head: Head, hidden: jax.Array, level: jax.Array) -> tuple[CrossEntropy, Any]:
        def add_chunk(carry: Any, tokens: Any) -> tuple[Any, jax.Array]:
            hidden, level, target, weight = tokens
            logits, gradients_of = jax.vjp(_logits, head, hidden)
            sums = score_logits(logits, level, target, weight, z_loss)
            d_logits = gradient_by_logits(logits, level, target, weight, z_loss)
            d_head, d_hidden = gradients_of(d_logits)
            return jax.tree.map(jnp.add, carry, (sums, d_head)), d_hidden

        start = (_zeros(), jax.tree.map(jnp.zeros_like, head))
        tokens = (hidden, level, targets, weights)
        (sums, d_head), d_hidden = jax.lax.scan(add_chunk, start, tokens)
        return sums, (d_head, d_hidden)

    @jax.custom_vjp
    def total(head: Head, hidden: jax.Array) -> CrossEntropy:
        return _from_a_safe_level(_scoring(targets, weights, z_loss), head, hidden)[0]

    def forward(head: Head, hidden: jax.Array) -> tuple[CrossEntropy, Any]:
        return _from_a_safe_level(differentiate, head, hidden)

    def backward(saved: Any, cotangent: CrossEntropy) -> Any:
        return jax.tree.map(lambda grad: (cotangent.objective * grad).astype(grad.dtype), saved)

    total.defvjp(forward, backward)
    sums = total(head, _in_chunks(hidden_BxTxD, chunk))
    return CrossEntropy(
        sums.objective, jax.lax.stop_gradient(sums.nats), jax.lax.stop_gradient(sums.correct)
    )


def cross_entropy_by_token(
    head: Head,
    hidden_BxTxD: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    chunk_length: int,
    z_loss: float = 0.0,
) -> tuple[CrossEntropy, jax.Array]:
    """The sums of `cross_entropy`, without gradients, and the weighted nats of each token (BxT)."""
    batch, length = target_BxT.shape
    chunk = min(chunk_length, length)
    targets = _in_chunks(target_BxT, chunk)
    weights = _in_chunks(weight_BxT.astype(jnp.float32), chunk)
    scoring = _scoring(targets, weights, z_loss)
    sums, nats = _from_a_safe_level(scoring, head, _in_chunks(hidden_BxTxD, chunk))
    return sums, nats.swapaxes(0, 1).reshape(batch, -1)[:, :length]


def _scoring(targets: jax.Array, weights: jax.Array, z_loss: float) -> Any:
    """The sweep over chunks without gradients: the sums, and the weighted nats of each token."""

    def sweep(head: Head, hidden: jax.Array, level: jax.Array) -> tuple[CrossEntropy, jax.Array]:
        def add_chunk(sums: CrossEntropy, tokens: Any) -> tuple[CrossEntropy, jax.Array]:
            hidden, level, target, weight = tokens
            logits = _logits(head, hidden)
            log_z, picked = log_z_and_picked(logits, level, target)
            found = score_logits(logits, level, target, weight, z_loss)
            return jax.tree.map(jnp.add, sums, found), weight * (log_z - picked)

        return jax.lax.scan(add_chunk, _zeros(), (hidden, level, targets, weights))

    return sweep


def mean_logit(head: Head, hidden: jax.Array) -> jax.Array:
    """The mean of the logits over the vocabulary in float32, without making them.

    Under a soft cap it is the capped mean of the logits before the cap.
    """
    mean = (hidden @ head.kernel_VxD.mean(axis=0) * head.scale).astype(jnp.float32)
    return head.soften(mean if head.bias_V is None else mean + head.bias_V.mean())


def score_logits(
    logits_BxTxV: jax.Array,
    level_BxT: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    z_loss: float,
) -> CrossEntropy:
    """The sums of given logits, with exponentials relative to `level`."""
    log_z_BxT, picked_BxT = log_z_and_picked(logits_BxTxV, level_BxT, target_BxT)
    nats = jnp.sum(weight_BxT * (log_z_BxT - picked_BxT))
    penalty = z_loss * jnp.sum(weight_BxT * jnp.square(log_z_BxT))
    correct = jnp.sum(weight_BxT * (picked_BxT >= jnp.max(logits_BxTxV, axis=-1)))
    return CrossEntropy(nats + penalty, nats, correct)


def gradient_by_logits(
    logits_BxTxV: jax.Array,
    level_BxT: jax.Array,
    target_BxT: jax.Array,
    weight_BxT: jax.Array,
    z_loss: float,
) -> jax.Array:
    """The gradient of the objective: weight * (p * (1 + 2 z_loss log Z) - 1 at the target).

    XLA shares the exponentials with `score_logits`. On CPU it is written out, in one pass over the
    chunk, since there a gradient of the gather scatters. On TPU JAX's own takes fewer cycles.
    """
    if platform() != "cpu":
        others = level_BxT, target_BxT, weight_BxT, z_loss
        return jax.grad(lambda logits: score_logits(logits, *others).objective)(logits_BxTxV)
    exp_BxTxV = jnp.exp(logits_BxTxV - level_BxT[..., None])
    z_BxT = jnp.sum(exp_BxTxV, axis=-1)
    log_z_BxT = level_BxT + jnp.log(z_BxT)
    of_exp_BxT = weight_BxT * (1 + 2 * z_loss * log_z_BxT) / z_BxT
    is_target_BxTxV = jnp.arange(logits_BxTxV.shape[-1]) == target_BxT[..., None]
    of_target_BxTxV = jnp.where(is_target_BxTxV, weight_BxT[..., None], 0)
    return exp_BxTxV * of_exp_BxT[..., None] - of_target_BxTxV


def log_z_and_picked(
    logits_BxTxV: jax.Array, level_BxT: jax.Array, target_BxT: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Z, with exponentials relative to `level`, and the logit of the target."""
    z_BxT = jnp.sum(jnp.exp(logits_BxTxV - level_BxT[..., None]), axis=-1)
    log_z_BxT = level_BxT + jnp.log(z_BxT)
    picked_BxT = jnp.take_along_axis(logits_BxTxV, target_BxT[..., None], axis=-1)[..., 0]
    return log_z_BxT, picked_BxT


def _logits(head: Head, hidden: jax.Array) -> jax.Array:
    with jax.named_scope("head"):
        return head.logits(hidden)


def _from_a_safe_level(sweep: Any, head: Head, hidden: jax.Array) -> Any:
    """What the sweep finds, (CrossEntropy, ...), from the mean's level or else the largest's."""
    found = sweep(head, hidden, mean_logit(head, hidden) + HEADROOM)

    def from_the_largest() -> Any:
        largest = jax.lax.map(lambda x: head.logits(x).max(axis=-1), hidden)
        return sweep(head, hidden, largest)

    with jax.named_scope("rarely"):
        return jax.lax.cond(jnp.isfinite(found[0].objective), lambda: found, from_the_largest)


def _in_chunks(x_BxT: jax.Array, chunk: int) -> jax.Array:
    """Positions in chunks along a new leading axis, the last one padded with zeros."""
    batch, length, *rest = x_BxT.shape
    padded = jnp.pad(x_BxT, [(0, 0), (0, -length % chunk)] + [(0, 0)] * len(rest))
    return padded.reshape(batch, -1, chunk, *rest).swapaxes(0, 1)


def _zeros() -> CrossEntropy:
    zero = jnp.zeros((), jnp.float32)
    return CrossEntropy(zero, zero, zero)
