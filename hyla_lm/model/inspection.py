"""Looking into a model's attention: the latent code of every pair, and the units it configures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from hyla_lm.attention import ACTIVATIONS, AttentionSpec, Operands, latent_codes
from hyla_lm.kernels.hyla.reference import hidden_layers
from hyla_lm.model.config import Features
from hyla_lm.model.decoder import Decoder


@dataclass(frozen=True)
class LayerView:
    """One attention layer in one call: code_BxHxTxS and what `attend` was given."""

    spec: AttentionSpec
    code_BxHxTxS: jax.Array
    operands: Operands

    def value_units(self) -> list[jax.Array]:
        """Each layer of units that phi acts on: BxTxSxU in a value network, BxSxHxU in values.

        There is none where phi is the identity.
        """
        x, phi = self.operands, self.spec.activation
        v_BxSxHxU = x.v_BxSxHxU.astype(jnp.float32)
        if phi == "identity":
            return []
        if self.spec.value_network == "linear":
            return [ACTIVATIONS[phi](v_BxSxHxU)]
        return hidden_layers(self.code_BxHxTxS, v_BxSxHxU, phi, x.deep_kernel_HxUxU)

    def contributions(self) -> jax.Array:
        """The norm of what each key adds to a query's heads, BxTxS: of a[h] z, or of a[h] v[h].

        It tells which keys matter also where the code is normalised to one length.
        """
        v_BxSxHxU = self.operands.v_BxSxHxU.astype(jnp.float32)
        squared_BxHxTxS = jnp.square(self.code_BxHxTxS)
        if self.spec.value_network == "linear":
            phi_v = ACTIVATIONS[self.spec.activation](v_BxSxHxU)
            size_BxSxH = jnp.sum(jnp.square(phi_v), axis=-1)
            return jnp.sqrt(jnp.einsum("bhts,bsh->bts", squared_BxHxTxS, size_BxSxH))
        deep = self.operands.deep_kernel_HxUxU
        z_BxTxSxU = hidden_layers(self.code_BxHxTxS, v_BxSxHxU, self.spec.activation, deep)[-1]
        return jnp.sqrt(squared_BxHxTxS.sum(1) * jnp.square(z_BxTxSxU).sum(-1))


def attention_layers(
    model: Decoder, params: Any, inputs: jax.Array, segment_ids: jax.Array | None = None
) -> list[LayerView]:
    """Every attention layer of the model on these inputs, without dropout, at all positions.

    Every code has T*S entries a head: call it on few rows, and within jit, which leaves out what
    is not used.
    """
    if isinstance(model.io, Features):
        model = model.clone(io=replace(model.io, answers=None))
    _, found = model.apply(
        {"params": params}, inputs, segment_ids, method="hidden", mutable=["intermediates"]
    )
    blocks, config = found["intermediates"]["blocks"], model.config

    def view(layer: int) -> LayerView:
        spec, x = config.spec(layer), _operands(blocks, layer, model)
        code = latent_codes(
            x.q_BxTxHxK,
            x.k_BxSxHxK,
            spec,
            bias=x.bias,
            causal=config.causal,
            segment_ids=segment_ids,
        )
        return LayerView(spec, code, x)

    return [view(layer) for layer in range(config.num_layers)]


def _operands(blocks: Mapping[str, Any], layer: int, model: Decoder) -> Operands:
    repeat, place = divmod(layer, len(model.config.pattern))
    name = f"block_{place}" if model.config.scan_layers else f"block_{layer}"
    (operands,) = blocks[name]["attention"]["operands"]
    if not model.config.scan_layers:
        return operands
    return jax.tree.map(lambda leaf: leaf[repeat], operands)
