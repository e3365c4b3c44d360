"""Looking into a model's attention: latent codes, value units, and the kernels of its layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import ACTIVATIONS, Request, choose, latent_codes_of
from hyla_lm.attention.hyla.reference import hidden_layers
from hyla_lm.errors import naming_settings
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.self_attention import Context, SelfAttention
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

    def contributions(self) -> jax.Array:
        """The norm of what each key adds to a query's heads, BxTxS: of a[h] z, or of a[h] v[h].

        It shows which keys matter even if the code is normalised to one length.
        """
        spec, v_BxSxHxU = self.request.spec, self.request.v_BxSxHxU.astype(jnp.float32)
        squared_BxHxTxS = jnp.square(self.code_BxHxTxS)
        if spec.value_network == "linear":
            phi_v = ACTIVATIONS[spec.activation](v_BxSxHxU)
            size_BxSxH = jnp.sum(jnp.square(phi_v), axis=-1)
            return jnp.sqrt(jnp.einsum("bhts,bsh->bts", squared_BxHxTxS, size_BxSxH))
        deep = self.request.deep_kernel_HxUxU
        z_BxTxSxU = hidden_layers(self.code_BxHxTxS, v_BxSxHxU, spec.activation, deep)[-1]
        return jnp.sqrt(squared_BxHxTxS.sum(1) * jnp.square(z_BxTxSxU).sum(-1))


class ObservedDecoder(Decoder):
    """A decoder that tells `observe` the requests of its attention layers whenever it runs.

    They are of the same run, so that gradients flow through them. Queries and keys are then kept
    for the backward pass, with `remat` too.
    """

    observe: Callable[[list[Request]], None] = lambda requests: None

    @nn.nowrap
    def apply(self, *args: Any, **options: Any) -> Any:
        output, found = super().apply(*args, mutable=["intermediates"], **options)
        if found:
            self.observe(_requests_in(found, self.config))
        return output


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
    return [LayerView(latent_codes_of(request), request) for request in asked]


def kernels_of(model: Decoder, params: Any, batch_size: int, length: int) -> list[str]:
    """The name of the kernel that each layer trains with on the mesh in use.

    Only shapes are computed; `params` may be shapes.
    """
    c, shape = model.config, (batch_size, length)
    kinds = [_kind(model, layer) for layer in range(c.num_layers)]
    names = {}
    setting = f"ModelConfig.attention_implementation = {c.attention_implementation!r}"
    with naming_settings(implementation=setting):
        for layer, kind in enumerate(kinds):
            if kind not in names:
                request = local_request(_request_of(model, params, layer, shape))
                names[kind] = choose(request, c.attention_implementation).name
    return [names[kind] for kind in kinds]


def _kind(model: Decoder, layer: int) -> tuple[int, int | None]:
    """The place of a layer in the pattern and its `answers`: equal ones ask for the same."""
    c = model.config
    is_last = layer == c.num_layers - 1 and not c.scan_layers
    return layer % len(c.pattern), model.answers if is_last else None


def _request_of(model: Decoder, params: Any, layer: int, shape: tuple[int, int]) -> Request:
    """The shapes of what a layer asks for in training."""
    c = model.config
    place, answers = _kind(model, layer)
    own = params["blocks"][f"block_{place if c.scan_layers else layer}"]["attention"]
    attention = AskingAlone(c, c.spec(layer), c.is_recurrent(layer), 0, answers)

    def request(params: Any, y_BxTxD: jax.Array, ids_BxT: jax.Array) -> Request:
        params = jax.tree.map(lambda leaf: leaf[0], params) if c.scan_layers else params
        segment_BxT = ids_BxT if isinstance(model.io, Tokens) else None
        context = Context(ids_BxT, segment_BxT, None, None, dropout=True)
        _, found = attention.apply(
            {"params": params},
            *(y_BxTxD, context),
            mutable=["intermediates"],
            rngs={"dropout": jax.random.key(0)},
        )
        (sown,) = found["intermediates"]["request"]
        return sown

    y_BxTxD = jax.ShapeDtypeStruct((*shape, c.model_dim), jnp.dtype(c.dtype))
    return jax.eval_shape(request, own, y_BxTxD, jax.ShapeDtypeStruct(shape, jnp.int32))


class AskingAlone(SelfAttention):
    """A layer that makes its request and does not attend."""

    @nn.nowrap
    def attend(self, request: Request) -> jax.Array:
        """Zeros of the shape of attention."""
        value_size = request.v_BxSxHxU.shape[-1]
        return jnp.zeros((*request.q_BxTxHxK.shape[:3], value_size), request.v_BxSxHxU.dtype)


def _requests(model: Decoder, params: Any, *inputs: Any, **options: Any) -> list[Request]:
    """The request of each attention layer on these inputs."""
    _, found = model.apply(
        {"params": params}, *inputs, method="hidden", mutable=["intermediates"], **options
    )
    return _requests_in(found, model.config)


def _requests_in(found: Mapping[str, Any], config: ModelConfig) -> list[Request]:
    """The request of each attention layer, from what a run of the model has sown."""
    blocks = found["intermediates"]["blocks"]

    def request(layer: int) -> Request:
        repeat, place = divmod(layer, len(config.pattern))
        name = f"block_{place}" if config.scan_layers else f"block_{layer}"
        (sown,) = blocks[name]["attention"]["request"]
        return jax.tree.map(lambda leaf: leaf[repeat], sown) if config.scan_layers else sown

    return [request(layer) for layer in range(config.num_layers)]
