"""The models of a coordinate check: one config at several widths, standard or in muP."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig

STANDARD, MUP = "standard", "mup"


def at_width(config: ModelConfig, width: int, grow: str) -> ModelConfig:
    """The model of that width, with more heads or larger ones, all else in proportion."""
    heads = {"num_heads": config.num_heads}
    sizes = {"head_dim": config.head_dim, "value_dim": config.value_size}
    growing = {"mlp_dim": config.mlp_dim, **(heads if grow == "heads" else sizes)}
    for name, size in growing.items():
        if size * width % config.model_dim:
            raise UserError(
                f"--widths: at width {width}, ModelConfig.{name} = {size} at width "
                f"{config.model_dim} is no whole number: give widths that are multiples of "
                f"{config.model_dim}."
            )
    grown: dict[str, Any] = {n: size * width // config.model_dim for n, size in growing.items()}
    return replace(config, model_dim=width, **grown)


def family(config: ModelConfig, widths: Sequence[int], grow: str, kind: str) -> list[ModelConfig]:
    """The model at each width; in muP, the base is the config's own, or else the first width."""
    models = [at_width(config, width, grow) for width in widths]
    if kind == STANDARD:
        return [replace(model, base_width=None, base_head_dim=None) for model in models]
    base = at_width(config, config.base_width or widths[0], grow)
    return [replace(m, base_width=base.model_dim, base_head_dim=base.head_dim) for m in models]
