"""The activations of a model on one batch, by name."""

from typing import Any

import flax.linen as nn
import jax

from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import LayerView, attention_layers

OBSERVED = ("attention", "feedforward")


def activations(model: Decoder, params: Any, inputs: jax.Array) -> dict[str, jax.Array]:
    """Embeddings, each layer's code, value units, branches and sum, and logits; layers unscanned.

    Call it within jit, which drops what is not used.
    """
    hidden, found = model.apply(
        {"params": params},
        inputs,
        method="hidden",
        capture_intermediates=_is_observed,
        mutable=["intermediates"],
    )
    seen = found["intermediates"]
    named = {"embedding": seen["embed"]["__call__"][0]}
    for layer, view in enumerate(attention_layers(model, params, inputs)):
        block = seen["blocks"][f"block_{layer}"]
        named[f"code {layer}"] = view.code_BxHxTxS
        named |= _value_units(layer, view)
        for name in OBSERVED:
            named[f"{name} {layer}"] = block[name]["__call__"][0]
        named[f"residual {layer}"] = block["__call__"][0]
    logits = model.apply({"params": params}, hidden, method="logits")
    return {**named, "logits": logits}


def _value_units(layer: int, view: LayerView) -> dict[str, jax.Array]:
    if view.request.spec.value_network == "linear":
        return {}
    return {f"value units {layer}": view.value_units()[-1]}


def _is_observed(module: nn.Module, method: str) -> bool:
    return method == "__call__" and (
        module.name in (*OBSERVED, "embed") or str(module.name).startswith("block_")
    )
