"""Running a model with latent codes or values other than its own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax

from hyla_lm.attention.reference import attend_by_codes, codes_of
from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import Codes
from hyla_lm.errors import UserError
from hyla_lm.model.decoder import Decoder, SelfAttention
from hyla_lm.model.inspection import attention_layers, replaced_attention


class Operands(NamedTuple):
    """What attention of a layer is a function of: codes, each BxHxTxS, and values."""

    codes: Codes
    v_BxSxHxU: jax.Array


Change = Callable[[int, Operands], Operands]


def operands_of(
    model: Decoder, params: Any, inputs: jax.Array, segment_ids: jax.Array | None = None
) -> list[Operands]:
    """The operands of every attention layer on these inputs, at all positions."""
    layers = attention_layers(model, params, inputs, segment_ids)
    return [Operands(codes_of(layer.request), layer.request.v_BxSxHxU) for layer in layers]


def apply_changed(
    model: Decoder, params: Any, change: Change, inputs: jax.Array, **context: Any
) -> jax.Array:
    """The outputs of the model if each layer attends with `change(layer, its own operands)`.

    Codes are those of the layer's input, which earlier changes have reached, without dropout. All
    is computed by the definition, on one device. Raises UserError for scanned layers.
    """
    if model.config.scan_layers:
        raise UserError(
            "ModelConfig.scan_layers = True runs all layers as one, so the codes of one cannot be "
            "changed: open the model with ModelConfig.scan_layers = False."
        )

    def attend_changed(module: SelfAttention, request: Request) -> jax.Array:
        layer = int(module.path[-2].removeprefix("block_"))
        codes, v_BxSxHxU = change(layer, Operands(codes_of(request), request.v_BxSxHxU))
        y_BxTxHxU = attend_by_codes(replace(request, v_BxSxHxU=v_BxSxHxU), codes)
        return y_BxTxHxU.astype(v_BxSxHxU.dtype)

    with replaced_attention(attend_changed):
        output: Any = model.apply({"params": params}, inputs, **context)
    return output
