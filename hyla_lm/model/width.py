"""What changes with width so that one learning rate serves all widths (muP): docs/choices.md.

A model of `base_width` is the standard one. A wider model draws some parameters with another
deviation and trains some at another rate; of the forward pass, only tied logits change.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from hyla_lm.attention.spec import AttentionSpec
from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig
from hyla_lm.parallel.sharding import path_of

BLOCK = re.compile(r"blocks/block_(\d+)/")

NORMED_OVER_HEADS = ("rms_head", "gated_readout")


@dataclass(frozen=True)
class Factors:
    """By how much a parameter's initial deviation and its learning rate are multiplied."""

    deviation: float = 1.0
    rate: float = 1.0


def tied_logit_scale(config: ModelConfig) -> float:
    """What tied logits are multiplied by."""
    base = config.base_width or config.model_dim
    scale = base**-0.5 if config.scale_tied_logits else 1.0
    return scale * (base / config.model_dim)


def factors_of(config: ModelConfig, path: str) -> Factors:
    """The factors of the parameter of that path; raises UserError for one without a rule."""
    block = BLOCK.match(path)
    spec, name = config.spec(int(block[1]) if block else 0), BLOCK.sub("", path)
    for pattern, factors in _rules(config, spec).items():
        if re.fullmatch(pattern, name):
            return factors
    raise UserError(
        f"ModelConfig.base_width = {config.base_width} has no rule for the parameter {path}: "
        "add it to hyla_lm/model/width.py or set ModelConfig.base_width = None."
    )


def _rules(config: ModelConfig, spec: AttentionSpec) -> dict[str, Factors]:
    """Factors by the path of a parameter, within its block if it has one."""
    width = config.model_dim / (config.base_width or config.model_dim)
    head_dim = config.head_dim / (config.base_head_dim or config.head_dim)
    heads, shrunk = width / head_dim, head_dim**-0.5

    def matrix(factors: Factors) -> Factors:
        """Of a matrix whose fan-in grows with width, from the factors of its bias."""
        return Factors(factors.deviation, factors.rate / width)

    same = Factors()
    readout = Factors(width**-0.5, 1 / width)
    mixing = Factors(rate=1 / heads)  # a sum over heads, whose scores do not average out
    query, key, value = Factors(shrunk, shrunk), same, same
    if spec.normalization in NORMED_OVER_HEADS:  # codes ignore the scale of queries and keys
        query, key = Factors(1.0, shrunk), Factors(rate=shrunk)
    if spec.value_network == "hypernetwork":
        value = Factors(heads**-0.5, 1 / heads)
    return {
        r"(embed|position_embed)/table": Factors(deviation=width**0.5),
        r"embed/kernel": same,
        r"attention/query/kernel": matrix(query),
        r"attention/query/bias": query,
        r"attention/key/kernel": matrix(key),
        r"attention/key/bias": key,
        r"attention/value/kernel": matrix(value),
        r"attention/value/bias": value,
        r"attention/(out/kernel|gate/kernel|deep_kernel)": matrix(same),
        r"attention/pair_\w+": mixing,
        r"attention/pair_\w+/kernel": matrix(mixing),
        r"feedforward/(up|down|gate)/kernel": matrix(same),
        r"feedforward/(up|down)": matrix(same),  # of all experts
        r"feedforward/gate|head/kernel": readout,
        r"attention/relative_bias|.*/(bias|scale)": same,
    }


def scale_initial(config: ModelConfig, params: Any) -> Any:
    """Parameters as the standard model draws them, multiplied by their factors."""
    if config.base_width is None:
        return params

    def scale(path: Any, leaf: jax.Array) -> jax.Array:
        return leaf * factors_of(config, path_of(path)).deviation

    return jax.tree_util.tree_map_with_path(scale, params)


def rate_of(config: ModelConfig) -> Callable[[str], float] | None:
    """The factor of the learning rate of each parameter by path; None if all are 1."""
    if config.base_width is None:
        return None
    return lambda path: factors_of(config, path).rate
