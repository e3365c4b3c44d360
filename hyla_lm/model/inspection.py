"""Latent codes of a model's attention layers, their figures, and the kernels of its layers.

Codes are computed again from the queries and keys of a request, without dropout, since kernels do
not return them. Hidden pairs have codes of 0 and count nowhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from hyla_lm.attention.attend import ACTIVATIONS, Request, choose, latent_codes_of
from hyla_lm.attention.reference import hidden_layers, visible_pairs
from hyla_lm.errors import naming_settings
from hyla_lm.metrics import Pair
from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder, SelfAttention
from hyla_lm.parallel.sharded_attention import local_request

# A code whose largest entry is below it is taken as 0, and it keeps log(0) finite: the logarithm
# is then -69, times a share of 0. Its inverse is far inside float32.
TINY = 1e-30
# Added to squared norms: features that do not vary have a cosine of 0, not of rounding.
NORM_EPSILON = 1e-12
# The score of an example with itself: its share is 0, and gradients are numbers with one example.
HIDDEN = float(jnp.finfo(jnp.float32).min)


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
    shape = (batch_size, length)
    inputs = jax.ShapeDtypeStruct(shape, jnp.int32)
    if isinstance(model.io, Features):
        inputs = jax.ShapeDtypeStruct((*shape, model.io.input_size), jnp.float32)

    def asked(params: Any, inputs: jax.Array) -> list[Request]:
        options = dict(rngs={"dropout": jax.random.key(0)}, dropout=True)
        segments = inputs if isinstance(model.io, Tokens) else None
        with nn.intercept_methods(_attend_nowhere):
            return _requests(model, params, inputs, segments, **options)

    requests = jax.eval_shape(asked, params, inputs)
    implementation = model.config.attention_implementation
    setting = f"ModelConfig.attention_implementation = {implementation!r}"
    with naming_settings(implementation=setting):
        return [choose(local_request(request), implementation).name for request in requests]


def _attend_nowhere(
    run: Callable[..., Any], args: Any, kwargs: Any, called: nn.module.InterceptorContext
) -> Any:
    """Zeros of the shape of attention, so that a layer makes its request and does not attend."""
    if not isinstance(called.module, SelfAttention) or called.method_name != "attend":
        return run(*args, **kwargs)
    (request,) = args
    q, v = request.q_BxTxHxK, request.v_BxSxHxU
    return jnp.zeros((*q.shape[:3], v.shape[-1]), v.dtype)


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


def mean_square(request: Request) -> Pair:
    """The squares of the codes over visible pairs and heads: their sum and number."""
    code_BxHxTxS = latent_codes_of(request)
    pairs = jnp.sum(visible_BxTxS(request).astype(jnp.float32))
    return jnp.sum(jnp.square(code_BxHxTxS)), pairs * code_BxHxTxS.shape[1]


def entropy_over_heads(request: Request) -> Pair:
    """The entropy of the heads' shares over visible pairs, in nats: its sum and their number."""
    entropy_BxTxS = head_entropy(latent_codes_of(request))
    visible = visible_BxTxS(request)
    return jnp.sum(jnp.where(visible, entropy_BxTxS, 0)), jnp.sum(visible.astype(jnp.float32))


def head_entropy(code_BxHxTxS: jax.Array) -> jax.Array:
    """The entropy BxTxS, in nats, of a[h]^2 / sum over heads of a^2: 0 to log(H), 0 of no code.

    Squares, not magnitudes: the gradient is then finite, and 0, at a head whose code is 0.
    """
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(code_BxHxTxS), axis=1, keepdims=True))
    is_code = largest > TINY
    square = jnp.square(code_BxHxTxS / jnp.where(is_code, largest, 1))
    total = jnp.where(is_code, jnp.sum(square, axis=1, keepdims=True), 1)
    share = square / total
    return -jnp.sum(share * jnp.log(share + TINY), axis=1)


def moments(request: Request, answers: int) -> jax.Array:
    """Means over the keys of the last `answers` queries of codes and products of heads: BxH(H+1).

    They do not depend on the order of keys. The mean code alone would be 1/S for softmax.
    """
    code_BxHxTxS = latent_codes_of(request)[:, :, -answers:]
    pairs_B = jnp.sum(visible_BxTxS(request)[:, -answers:].astype(jnp.float32), axis=(1, 2))
    first_BxH = jnp.sum(code_BxHxTxS, axis=(2, 3))
    second_BxHxH = jnp.einsum("bhts,bgts->bhg", code_BxHxTxS, code_BxHxTxS)
    flat_BxHH = second_BxHxH.reshape(len(second_BxHxH), -1)
    return jnp.concatenate([first_BxH, flat_BxHH], axis=1) / pairs_B[:, None]


def contrast(features_BxF: jax.Array, label_BxM: jax.Array, temperature: float) -> Pair:
    """Supervised contrastive loss in nats over examples that share a label: its sum and number.

    -log of the softmax over all others of cosine / temperature, averaged over those of the same
    label (Khosla et al. 2020, L_out). Cosines are about the mean of the features.
    """
    centred = features_BxF - jnp.mean(features_BxF, axis=0)
    squared = jnp.sum(jnp.square(centred), axis=1, keepdims=True)
    unit_BxF = centred * jax.lax.rsqrt(squared + NORM_EPSILON)
    others_BxB = ~jnp.eye(len(unit_BxF), dtype=bool)
    same_BxB = jnp.all(label_BxM[:, None] == label_BxM[None], axis=-1) & others_BxB
    score_BxB = jnp.where(others_BxB, unit_BxF @ unit_BxF.T / temperature, HIDDEN)
    log_share_BxB = jnp.where(same_BxB, jax.nn.log_softmax(score_BxB, axis=1), 0)
    count_B = jnp.sum(same_BxB, axis=1)
    loss_B = -jnp.sum(log_share_BxB, axis=1) / jnp.maximum(count_B, 1)
    return jnp.sum(loss_B), jnp.sum((count_B > 0).astype(jnp.float32))


def visible_BxTxS(r: Request) -> jax.Array:
    """Which keys each query sees."""
    visible = visible_pairs(r.q_position_T, r.k_position_S, r.segments, r.causal)[:, 0]
    return jnp.broadcast_to(visible, (len(r.q_BxTxHxK), *visible.shape[1:]))
