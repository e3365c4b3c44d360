"""What changes with width so that one learning rate serves all widths (muP): docs/width.md.

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

NORMED_OVER_HEADS = ("rms_head", "pair_rms_head", "talking_rms_heads", "gated_readout")


@dataclass(frozen=True)
class Factors:
    """By how much a parameter's initial deviation and its learning rate are multiplied."""

    deviation: float = 1.0
    rate: float = 1.0


@dataclass(frozen=True)
class Growth:
    """How many times as wide as its base a model is, and its query and key heads."""

    width: float
    head_dim: float

    @property
    def heads(self) -> float:
        return self.width / self.head_dim


Rule = Callable[[Growth, AttentionSpec], Factors]


def growth_of(config: ModelConfig) -> Growth:
    """The growth of a model from its base; of 1 if it has none."""
    base_head_dim = config.base_head_dim or config.head_dim
    return Growth(
        config.model_dim / (config.base_width or config.model_dim), config.head_dim / base_head_dim
    )


def tied_logit_scale(config: ModelConfig) -> float:
    """What tied logits are multiplied by."""
    base = config.base_width or config.model_dim
    scale = base**-0.5 if config.scale_tied_logits else 1.0
    return scale * (base / config.model_dim)


def factors_of(config: ModelConfig, path: str) -> Factors:
    """The factors of the parameter of that path; raises UserError for one without a rule."""
    block = BLOCK.match(path)
    spec = config.spec(int(block[1]) if block else 0)
    name = BLOCK.sub("", path)
    for pattern, rule in RULES.items():
        if re.fullmatch(pattern, name):
            return rule(growth_of(config), spec)
    raise UserError(
        f"ModelConfig.base_width = {config.base_width} has no rule for the parameter {path}: "
        "add it to hyla_lm/model/width.py or set ModelConfig.base_width = None."
    )


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


def _vector(growth: Growth, spec: AttentionSpec) -> Factors:
    return Factors()


def _table(growth: Growth, spec: AttentionSpec) -> Factors:
    return Factors(deviation=growth.width**0.5)


def _readout(growth: Growth, spec: AttentionSpec) -> Factors:
    return Factors(growth.width**-0.5, 1 / growth.width)


def _query(growth: Growth, spec: AttentionSpec) -> Factors:
    shrunk = growth.head_dim**-0.5
    return Factors(1.0 if _normed(spec) else shrunk, shrunk)


def _key(growth: Growth, spec: AttentionSpec) -> Factors:
    return Factors(rate=growth.head_dim**-0.5 if _normed(spec) else 1.0)


def _mixing(growth: Growth, spec: AttentionSpec) -> Factors:
    """A sum over heads, whose scores do not average out."""
    return Factors(rate=1 / growth.heads)


def _normed(spec: AttentionSpec) -> bool:
    """Whether the scale of queries and keys leaves the code alone."""
    return spec.normalization in NORMED_OVER_HEADS


def _value(growth: Growth, spec: AttentionSpec) -> Factors:
    if spec.value_network == "linear":
        return Factors()
    return Factors(growth.heads**-0.5, 1 / growth.heads)


def _matrix_to(outputs: Rule) -> Rule:
    """The rule of a matrix whose fan-in grows with width; `outputs` is that of its bias."""

    def rule(growth: Growth, spec: AttentionSpec) -> Factors:
        factors = outputs(growth, spec)
        return Factors(factors.deviation, factors.rate / growth.width)

    return rule


# By the path of a parameter, within its block if it has one.
RULES: dict[str, Rule] = {
    r"(embed|position_embed)/table": _table,
    r"embed/kernel": _vector,
    r"attention/query/kernel": _matrix_to(_query),
    r"attention/query/bias": _query,
    r"attention/key/kernel": _matrix_to(_key),
    r"attention/key/bias": _key,
    r"attention/value/kernel": _matrix_to(_value),
    r"attention/value/bias": _value,
    r"attention/(out/kernel|gate/kernel|deep_kernel)": _matrix_to(_vector),
    r"attention/pair_\w+": _mixing,
    r"attention/pair_\w+/kernel": _matrix_to(_mixing),
    r"feedforward/(up|down|gate)/kernel": _matrix_to(_vector),
    r"feedforward/(up|down)": _matrix_to(_vector),  # of all experts
    r"feedforward/gate|head/kernel": _readout,
    r"attention/relative_bias|.*/(bias|scale)": _vector,
}
