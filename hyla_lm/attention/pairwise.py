"""Codes of attention as functions of one tile: the scores of all heads, some keys, some queries.

A pair network makes two codes for a key s and a query t of the scores of their heads. Skeletons
(`reference`, `blocked`, pairwise_tpu.py) do the products around it, and its gradient by `jax.vjp`:

    z[t,s] = phi(sum over h of made[h,s,t] v[s,h])     y[t,h] = sum over s of read[h,s,t] z[t,s]

With a linear value network y[t,h] = sum over s of read[h,s,t] phi(v[s,h]).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyla_lm.attention.lanes import LANES

RMS_HEAD_EPSILON = 1e-6
Weights = Mapping[str, jax.Array]


class Codes(NamedTuple):
    """What configures the value network of a pair, and what reads it out if that is another."""

    made_HxSxT: jax.Array
    read_HxSxT: jax.Array | None = None


class Weight(NamedTuple):
    """A learned operand, an axis of H a letter: ("HH") is HxHx1xT. It starts at 0.

    `by_query`: a linear function of the layer's input at the query, else the same for all.
    """

    axes: str
    by_query: bool = False

    def size(self, heads: int) -> int:
        return int(heads ** len(self.axes))


@dataclass(frozen=True)
class PairNetwork:
    """A function of scores_HxSxT in float32, visible_SxT and weights, elementwise in pairs.

    Codes of hidden pairs are set to 0 after it. A function that sums over keys asks for
    `whole_rows`: its tiles have all keys.
    """

    codes: Callable[[jax.Array, jax.Array, Weights], Codes]
    explained: str
    weights: Mapping[str, Weight] = field(default_factory=dict)
    whole_rows: bool = False

    def size(self, heads: int) -> int:
        """N, the numbers that all weights are at a query."""
        return sum(weight.size(heads) for weight in self.weights.values())

    @property
    def reads_apart(self) -> bool:
        """Whether the value network is read out by a code of its own."""
        scores = jax.ShapeDtypeStruct((1, 1, 1), jnp.float32)
        visible = jax.ShapeDtypeStruct((1, 1), jnp.bool_)
        codes = jax.eval_shape(lambda s, seen: self.at(s, seen, None), scores, visible)
        return codes.read_HxSxT is not None

    def at(
        self, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights_Nx1xT: jax.Array | None
    ) -> Codes:
        """The codes of a tile; without weights they are 0."""
        heads, weights, start = s_HxSxT.shape[0], {}, 0
        for name, weight in self.weights.items():
            shape, end = [heads] * len(weight.axes), start + weight.size(heads)
            if weights_Nx1xT is None:
                weights[name] = jnp.zeros((*shape, 1, 1), s_HxSxT.dtype)
            else:
                weights[name] = weights_Nx1xT[start:end].reshape(*shape, 1, -1)
            start = end
        codes = self.codes(s_HxSxT, visible_SxT, weights)
        hidden_as_0: Codes = jax.tree.map(lambda a: jnp.where(visible_SxT[None], a, 0), codes)
        return hidden_as_0


def codes_of_rows(
    network: PairNetwork, s_BxHxTxS: jax.Array, visible: jax.Array, weights: jax.Array | None
) -> Codes:
    """The codes of a batch of whole matrices, BxHxTxS; `weights` is broadcastable to BxNxT."""
    batch, _, q_length, k_length = s_BxHxTxS.shape
    visible_BxSxT = jnp.broadcast_to(visible[:, 0], (batch, q_length, k_length)).swapaxes(1, 2)
    if weights is not None:
        rows = weights.astype(s_BxHxTxS.dtype)[:, :, None]
        weights = jnp.broadcast_to(rows, (batch, *rows.shape[1:]))
    codes = jax.vmap(network.at)(s_BxHxTxS.swapaxes(2, 3), visible_BxSxT, weights)
    return jax.tree.map(lambda x: x.swapaxes(2, 3), codes)


def weight_rows(weights: jax.Array | None, batch: int, q_length: int) -> tuple[jax.Array, ...]:
    """The weights as B x N x T in float32, padded to blocks of 128 queries; empty for None."""
    if weights is None:
        return ()
    whole = jnp.broadcast_to(weights.astype(jnp.float32), (batch, weights.shape[1], q_length))
    return (jnp.pad(whole, [(0, 0), (0, 0), (0, -q_length % LANES)]),)


def rms_over_heads(s_HxSxT: jax.Array) -> jax.Array:
    """The scores divided by their root mean square over heads."""
    mean_square = jnp.mean(s_HxSxT * s_HxSxT, axis=0, keepdims=True)
    return s_HxSxT * jax.lax.rsqrt(mean_square + RMS_HEAD_EPSILON)


def softmax_over_keys(s_HxSxT: jax.Array, visible_SxT: jax.Array) -> jax.Array:
    """Softmax over the visible keys of a tile with whole rows; 0 if a query sees none."""
    s_HxSxT = jnp.where(visible_SxT[None], s_HxSxT, jnp.finfo(s_HxSxT.dtype).min)
    e_HxSxT = jnp.exp(s_HxSxT - jax.lax.stop_gradient(s_HxSxT.max(axis=1, keepdims=True)))
    return e_HxSxT / e_HxSxT.sum(axis=1, keepdims=True)


def mix_heads(w_HxHx1xT: jax.Array, s_HxSxT: jax.Array) -> jax.Array:
    """sum over h of w[g,h] s[h], shape GxSxT."""
    mixed = w_HxHx1xT[:, 0] * s_HxSxT[0]
    for head in range(1, len(s_HxSxT)):
        mixed += w_HxHx1xT[:, head] * s_HxSxT[head]
    return mixed


def _rms_head(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    return Codes(rms_over_heads(s_HxSxT))


def _talking_heads(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    a_HxSxT = softmax_over_keys(s_HxSxT + mix_heads(w["before"], s_HxSxT), visible_SxT)
    return Codes(a_HxSxT + mix_heads(w["after"], a_HxSxT))


def _talking_rms_heads(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    a_HxSxT = rms_over_heads(s_HxSxT + mix_heads(w["before"], s_HxSxT))
    return Codes(a_HxSxT + mix_heads(w["after"], a_HxSxT))


def _gated_readout(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    a_HxSxT = rms_over_heads(s_HxSxT)
    return Codes(a_HxSxT, a_HxSxT * jax.nn.sigmoid(mix_heads(w["gate"], a_HxSxT)))


_MIXING = MappingProxyType({"before": Weight("HH"), "after": Weight("HH")})
_BY_QUERY = MappingProxyType({"before": Weight("HH", True), "after": Weight("HH", True)})
PAIR_NETWORKS: Mapping[str, PairNetwork] = MappingProxyType(
    {
        "pair_rms_head": PairNetwork(_rms_head, "rms_head as a function of a tile"),
        "talking_heads": PairNetwork(
            _talking_heads,
            "softmax over keys; learned matrices mix heads before and after",
            _MIXING,
            whole_rows=True,
        ),
        "talking_rms_heads": PairNetwork(
            _talking_rms_heads,
            "rms_head; learned matrices mix heads before and after",
            _MIXING,
        ),
        "query_composed": PairNetwork(
            _talking_heads,
            "softmax over keys; matrices made of the query mix heads before and after",
            _BY_QUERY,
            whole_rows=True,
        ),
        "gated_readout": PairNetwork(
            _gated_readout,
            "rms_head, with a gate of the code for the read-out",
            MappingProxyType({"gate": Weight("HH")}),
        ),
    }
)


def join_weights(network: PairNetwork, weights: Mapping[str, jax.Array]) -> jax.Array | None:
    """The weights of a call, {name: BxTxHxH or HxH}, as BxNxT; 1xNx1 if no query has its own."""
    parts = []
    for name, weight in network.weights.items():
        x, rank = weights[name], len(weight.axes)
        batch_and_time = x.shape[: x.ndim - rank] or (1, 1)
        parts.append(x.reshape(*batch_and_time, math.prod(x.shape[x.ndim - rank :])))
    if not parts:
        return None
    batch, length = (max(part.shape[axis] for part in parts) for axis in (0, 1))
    whole = [jnp.broadcast_to(part, (batch, length, part.shape[2])) for part in parts]
    return jnp.concatenate(whole, axis=2).swapaxes(1, 2)
