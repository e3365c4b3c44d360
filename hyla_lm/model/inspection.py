"""Latent codes of a model's attention layers, their figures, and the kernels of its layers.

Codes are computed again from the queries and keys of a request, without dropout, since kernels do
not return them. Hidden pairs have codes of 0 and count nowhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import choose
from hyla_lm.attention.reference import codes_of, hidden_layers
from hyla_lm.attention.request import Request
from hyla_lm.attention.spec import ACTIVATIONS
from hyla_lm.model.config import Features, Tokens
from hyla_lm.model.decoder import Decoder, SelfAttention
from hyla_lm.parallel.sharded_attention import local_request


@dataclass(frozen=True)
class LayerView:
    """One attention layer in one call: code_BxHxTxS and its request."""

    code_BxHxTxS: jax.Array
    request: Request

    def value_units(self) -> list[jax.Array]:
        """Each layer of units that phi acts on: BxTxSxU in a value network, BxSxHxU in values.

        Empty if phi is the identity.
        """
        spec, v_BxSxHxU = self.request.spec, self.request.v_BxSxHxU.astype(jnp.float32)
        phi = spec.activation
        if phi == "identity":
            return []
        if spec.value_network == "linear":
            return [ACTIVATIONS[phi](v_BxSxHxU)]
        deep = self.request.deep_kernel_HxUxU
        return hidden_layers(self.code_BxHxTxS, v_BxSxHxU, phi, deep)


def attention_layers(
    model: Decoder, params: Any, inputs: jax.Array, segment_ids: jax.Array | None = None
) -> list[LayerView]:
    """Every attention layer of the model on these inputs, without dropout, at all positions.

    A code has T*S entries a head: call this on few rows, and within jit, which drops what is not
    used.
    """
    if isinstance(model.io, Features):
        model = model.clone(io=replace(model.io, answers=None))
    asked = _requests(model, params, inputs, segment_ids)
    return [LayerView(codes_of(request).made_HxSxT, request) for request in asked]


def kernels_of(model: Decoder, params: Any, batch_size: int, length: int) -> list[str]:
    """The name of the kernel that each layer trains with on the mesh in use.

    Only shapes are computed; `params` may be shapes.
    """
    shape = (batch_size, length)
    inputs = jax.ShapeDtypeStruct(shape, jnp.int32)
    if isinstance(model.io, Features):
        inputs = jax.ShapeDtypeStruct((*shape, model.io.input_size), jnp.float32)

    def zeros(layer: SelfAttention, request: Request) -> jax.Array:
        v = request.v_BxSxHxU
        return jnp.zeros((*request.q_BxTxHxK.shape[:3], v.shape[-1]), v.dtype)

    def asked(params: Any, inputs: jax.Array) -> list[Request]:
        options = dict(rngs={"dropout": jax.random.key(0)}, dropout=True)
        segments = inputs if isinstance(model.io, Tokens) else None
        with replaced_attention(zeros):
            return _requests(model, params, inputs, segments, **options)

    requests = jax.eval_shape(asked, params, inputs)
    implementation = model.config.attention_implementation
    return [choose(local_request(request), implementation).name for request in requests]


def replaced_attention(attend: Callable[[SelfAttention, Request], jax.Array]) -> Any:
    """A context in which attention layers compute `attend(layer, request)` instead."""

    def intercept(
        run: Callable[..., Any], args: Any, kwargs: Any, called: nn.module.InterceptorContext
    ) -> Any:
        if isinstance(called.module, SelfAttention) and called.method_name == "attend":
            return attend(called.module, *args)
        return run(*args, **kwargs)

    return nn.intercept_methods(intercept)


def _requests(model: Decoder, params: Any, *inputs: Any, **options: Any) -> list[Request]:
    """The request of each attention layer on these inputs."""
    _, found = model.apply(
        {"params": params}, *inputs, method="hidden", mutable=["intermediates"], **options
    )
    config, blocks = model.config, found["intermediates"]["blocks"]

    def request(layer: int) -> Request:
        repeat, place = divmod(layer, len(config.pattern))
        name = f"block_{place}" if config.scan_layers else f"block_{layer}"
        (sown,) = blocks[name]["attention"]["request"]
        return jax.tree.map(lambda leaf: leaf[repeat], sown) if config.scan_layers else sown

    return [request(layer) for layer in range(config.num_layers)]
