"""What a loss on latent codes is made of: figures of the codes of one attention layer.

The codes are made again from the queries and keys of a request, without dropout, since kernels do
not return them. Hidden pairs have codes of 0 and count nowhere.
"""

import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import Request, latent_codes_of
from hyla_lm.attention.scores import visible_pairs
from hyla_lm.metrics import Pair

# A code whose largest entry is below it is taken as 0, and it keeps log(0) finite: the logarithm
# is then -69, times a share of 0. Its inverse is far inside float32.
TINY = 1e-30
# Added to squared norms: features that do not vary have a cosine of 0, not of rounding.
NORM_EPSILON = 1e-12
# The score of an example with itself: its share is 0, and gradients are numbers with one example.
HIDDEN = float(jnp.finfo(jnp.float32).min)


def mean_square(request: Request) -> Pair:
    """The squares of the codes over visible pairs and heads: their sum and number."""
    code_BxHxTxS = latent_codes_of(request)
    pairs = jnp.sum(visible_BxTxS(request).astype(jnp.float32))
    return jnp.sum(jnp.square(code_BxHxTxS)), pairs * code_BxHxTxS.shape[1]


def entropy_over_heads(request: Request) -> Pair:
    """The entropy of the heads' shares over visible pairs, in nats: its sum and their number."""
    entropy_BxTxS = head_entropy(latent_codes_of(request))
    visible = visible_BxTxS(request)
    return jnp.sum(jnp.where(visible, entropy_BxTxS, 0)), jnp.sum(visible.astype(jnp.float32))


def head_entropy(code_BxHxTxS: jax.Array) -> jax.Array:
    """The entropy BxTxS, in nats, of a[h]^2 / sum over heads of a^2: 0 to log(H), 0 of no code.

    Squares, not magnitudes: the gradient is then finite, and 0, at a head whose code is 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(code_BxHxTxS), axis=1, keepdims=True))
    is_code = largest > TINY
    square = jnp.square(code_BxHxTxS / jnp.where(is_code, largest, 1))
    total = jnp.where(is_code, jnp.sum(square, axis=1, keepdims=True), 1)
    share = square / total
    return -jnp.sum(share * jnp.log(share + TINY), axis=1)


def moments(request: Request, answers: int) -> jax.Array:
    """Means over the keys of the last `answers` queries of codes and products of heads: BxH(H+1).

    They do not depend on the order of keys. The mean code alone would be 1/S for softmax.
    """
    code_BxHxTxS = latent_codes_of(request)[:, :, -answers:]
    pairs_B = jnp.sum(visible_BxTxS(request)[:, -answers:].astype(jnp.float32), axis=(1, 2))
    first_BxH = jnp.sum(code_BxHxTxS, axis=(2, 3))
    second_BxHxH = jnp.einsum("bhts,bgts->bhg", code_BxHxTxS, code_BxHxTxS)
    flat_BxHH = second_BxHxH.reshape(len(second_BxHxH), -1)
    return jnp.concatenate([first_BxH, flat_BxHH], axis=1) / pairs_B[:, None]


def contrast(features_BxF: jax.Array, label_BxM: jax.Array, temperature: float) -> Pair:
    """Supervised contrastive loss in nats over examples that share a label: its sum and number.

    -log of the softmax over all others of cosine / temperature, averaged over those of the same
    label (Khosla et al. 2020, L_out). Cosines are about the mean of the features.
    """
    centred = features_BxF - jnp.mean(features_BxF, axis=0)
    squared = jnp.sum(jnp.square(centred), axis=1, keepdims=True)
    unit_BxF = centred * jax.lax.rsqrt(squared + NORM_EPSILON)
    others_BxB = ~jnp.eye(len(unit_BxF), dtype=bool)
    same_BxB = jnp.all(label_BxM[:, None] == label_BxM[None], axis=-1) & others_BxB
    score_BxB = jnp.where(others_BxB, unit_BxF @ unit_BxF.T / temperature, HIDDEN)
    log_share_BxB = jnp.where(same_BxB, jax.nn.log_softmax(score_BxB, axis=1), 0)
    count_B = jnp.sum(same_BxB, axis=1)
    loss_B = -jnp.sum(log_share_BxB, axis=1) / jnp.maximum(count_B, 1)
    return jnp.sum(loss_B), jnp.sum((count_B > 0).astype(jnp.float32))


def visible_BxTxS(r: Request) -> jax.Array:
    """Which keys each query sees."""
    visible = visible_pairs(r.q_position_T, r.k_position_S, r.segments, r.causal)[:, 0]
    return jnp.broadcast_to(visible, (len(r.q_BxTxHxK), *visible.shape[1:]))
