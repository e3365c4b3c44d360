"""The kind of attention: how scores become codes, and the shape of the value network.

A pair network is a code that is a function of one tile: the scores of all heads, some keys, some
queries. It makes two codes for a key s and a query t of the scores of their heads. Skeletons
(`reference`, `blocked`, pairwise_tpu.py) do the products around it, and its gradient by `jax.vjp`:

    z[t,s] = phi(sum over h of made[h,s,t] v[s,h])     y[t,h] = sum over s of read[h,s,t] z[t,s]

With a linear value network y[t,h] = sum over s of read[h,s,t] phi(v[s,h]).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp

from hyla_lm.errors import UserError

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


@dataclass(frozen=True)
class PairNetwork:
    """A function of scores_HxSxT in float32, visible_SxT and weights, elementwise in pairs.

    Codes of hidden pairs are set to 0 after it. A function that sums over keys asks for
    `whole_rows`: its tiles have all keys.
    """

    codes: Callable[[jax.Array, jax.Array, Weights], Codes]
    weights: Mapping[str, Weight] = field(default_factory=dict)
    whole_rows: bool = False

    def at(
        self, s_HxSxT: jax.Array, visible_SxT: jax.Array, weights_Nx1xT: jax.Array | None
    ) -> Codes:
        """The codes of a tile; without weights they are 0."""
        heads, weights, start = s_HxSxT.shape[0], {}, 0
        for name, weight in self.weights.items():
            shape, end = [heads] * len(weight.axes), start + heads ** len(weight.axes)
            if weights_Nx1xT is None:
                weights[name] = jnp.zeros((*shape, 1, 1), s_HxSxT.dtype)
            else:
                weights[name] = weights_Nx1xT[start:end].reshape(*shape, 1, -1)
            start = end
        codes = self.codes(s_HxSxT, visible_SxT, weights)
        hidden_as_0: Codes = jax.tree.map(lambda a: jnp.where(visible_SxT[None], a, 0), codes)
        return hidden_as_0


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


def _talking_heads(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    a_HxSxT = softmax_over_keys(s_HxSxT + mix_heads(w["before"], s_HxSxT), visible_SxT)
    return Codes(a_HxSxT + mix_heads(w["after"], a_HxSxT))


def _gated_readout(s_HxSxT: jax.Array, visible_SxT: jax.Array, w: Weights) -> Codes:
    a_HxSxT = rms_over_heads(s_HxSxT)
    return Codes(a_HxSxT, a_HxSxT * jax.nn.sigmoid(mix_heads(w["gate"], a_HxSxT)))


PAIR_NETWORKS: Mapping[str, PairNetwork] = {
    "talking_heads": PairNetwork(
        _talking_heads,
        {"before": Weight("HH"), "after": Weight("HH")},
        whole_rows=True,
    ),
    "query_composed": PairNetwork(
        _talking_heads,
        {"before": Weight("HH", True), "after": Weight("HH", True)},
        whole_rows=True,
    ),
    "gated_readout": PairNetwork(_gated_readout, {"gate": Weight("HH")}),
}
NORMALIZATIONS = ("softmax", "identity", "rms_head", "softmax_rms_head", *PAIR_NETWORKS)
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = {
    "identity": lambda x: x,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


@dataclass(frozen=True)
class AttentionSpec:
    """One row of the paper's Table A1; raises UserError for an unknown part.

    value_depth counts the hidden layers of the value network: 1, or 2 for Eq. 10.
    """

    normalization: str
    value_network: str
    activation: str = "identity"
    value_depth: int = 1

    def __post_init__(self) -> None:
        parts = {
            "normalization": NORMALIZATIONS,
            "value_network": ("linear", "hypernetwork"),
            "activation": tuple(ACTIVATIONS),
            "value_depth": (1, 2) if self.value_network == "hypernetwork" else (1,),
        }
        for name, allowed in parts.items():
            if getattr(self, name) not in allowed:
                raise UserError(f"{self}: {name} must be one of {allowed}.")

    @property
    def pair_network(self) -> PairNetwork | None:
        """The function of a tile that makes the code, if one does."""
        return PAIR_NETWORKS.get(self.normalization)

    @property
    def normalizes_over_keys(self) -> bool:
        if self.pair_network is not None:
            return self.pair_network.whole_rows
        return self.normalization.startswith("softmax")

    @property
    def mixes_heads(self) -> bool:
        """Whether a head's output depends on other heads' scores."""
        mixes = self.pair_network is not None or self.normalization.endswith("rms_head")
        return self.value_network == "hypernetwork" or mixes

    @property
    def is_recurrent(self) -> bool:
        """Whether a query needs of all earlier keys only one sum: phi(v) weighted by plain q.k."""
        return self.value_network == "linear" and self.normalization == "identity"


VARIANTS: Mapping[str, AttentionSpec] = {
    "softmax": AttentionSpec("softmax", "linear"),
    "linear": AttentionSpec("identity", "linear"),
    "hyla": AttentionSpec("rms_head", "hypernetwork", "relu"),
    "linear_rms_head": AttentionSpec("rms_head", "linear"),
    "linear_rms_head_nonlinear_value": AttentionSpec("rms_head", "linear", "relu"),
    "hyla_no_rms_head": AttentionSpec("identity", "hypernetwork", "relu"),
    "hyla_no_nonlinearity": AttentionSpec("rms_head", "hypernetwork"),
    "hyla_no_nonlinearity_no_rms_head": AttentionSpec("identity", "hypernetwork"),
    "hyla_softmax_no_rms_head": AttentionSpec("softmax", "hypernetwork", "relu"),
    "hyla_softmax": AttentionSpec("softmax_rms_head", "hypernetwork", "relu"),
    "hyla_deep": AttentionSpec("rms_head", "hypernetwork", "relu", value_depth=2),
    "hyla_gated": AttentionSpec("gated_readout", "hypernetwork", "relu"),
    "talking_heads": AttentionSpec("talking_heads", "linear"),
    "query_composed": AttentionSpec("query_composed", "linear"),
}
