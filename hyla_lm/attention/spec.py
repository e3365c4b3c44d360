"""The kind of attention: normalisation of the scores and shape of the value network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
import jax.numpy as jnp

from hyla_lm.attention.pairwise import PAIR_NETWORKS, PairNetwork
from hyla_lm.errors import UserError

VALUE_NETWORKS = ("linear", "hypernetwork")
EXPLAINED: Mapping[str, str] = MappingProxyType(
    {
        "softmax": "softmax over the keys",
        "identity": "scores as they are",
        "rms_head": "scores, RMS-normalised over the heads",
        "softmax_rms_head": "softmax over the keys, RMS-normalised over the heads",
        **{name: network.explained for name, network in PAIR_NETWORKS.items()},
    }
)
NORMALIZATIONS = tuple(EXPLAINED)
ACTIVATIONS: Mapping[str, Callable[[jax.Array], jax.Array]] = MappingProxyType(
    {
        "identity": lambda x: x,
        "relu": jax.nn.relu,
        "silu": jax.nn.silu,
        "gelu": lambda x: jax.nn.gelu(x, approximate=True),
        "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
        "sigmoid": jax.nn.sigmoid,
        "tanh": jnp.tanh,
    }
)


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
        _check("normalization", self.normalization, NORMALIZATIONS)
        _check("value_network", self.value_network, VALUE_NETWORKS)
        _check("activation", self.activation, tuple(ACTIVATIONS))
        depths = (1, 2) if self.value_network == "hypernetwork" else (1,)
        _check("value_depth", self.value_depth, depths)

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

    def explained(self) -> str:
        """The variant in a line: the normalisation of its latent code, and its value network."""
        scores = EXPLAINED[self.normalization]
        if self.value_network == "linear":
            of = "" if self.activation == "identity" else f"{self.activation} of the "
            return f"{scores}; the code weighs the {of}values"
        layers = "two hidden layers" if self.value_depth == 2 else "a hidden layer"
        units = "linear" if self.activation == "identity" else self.activation
        return f"{scores}; the code makes a value network with {layers} of {units} units"


def _check(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UserError(f"AttentionSpec.{name} = {value!r} must be one of {allowed}.")


VARIANTS: Mapping[str, AttentionSpec] = MappingProxyType(
    {
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
)
