"""Whole networks against the authors' models and NanoDO: logits, latent codes, every gradient."""

import re
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.model.config import Features, ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import attention_layers
from tests.golden.arrays import assert_close, tree_of
from tests.model.small_model import QUICK_COMPILE, shapes

Load = Callable[[str], dict[str, np.ndarray]]
Params = dict

COMMON = dict(num_layers=2, model_dim=16, dtype="float32")
AUTHORS = dict(num_heads=4, head_dim=2, mlp_dim=24, positions="relative")
LOGIC = dict(causal=False, feedforward="gelu", relative_buckets=6, relative_max_distance=6)
LANGUAGE = dict(causal=True, feedforward="swiglu", relative_buckets=10, relative_max_distance=10)
VARIANTS = {"softmax_attention": "softmax", "linear_attention": "linear", "linear_hypatt": "hyla"}

MODELS: dict[str, Decoder] = {
    f"model_{task}_{theirs}": Decoder(ModelConfig(attention=ours, **COMMON, **AUTHORS, **sizes), io)
    for task, sizes, io in (("logic", LOGIC, Features(5, 1)), ("lm", LANGUAGE, Tokens(13)))
    for theirs, ours in VARIANTS.items()
}
AUTHORS_MODELS = tuple(MODELS)
MODELS["nanodo_model"] = Decoder(
    ModelConfig(
        num_heads=2,
        head_dim=8,
        mlp_dim=32,
        attention="softmax",
        positions="learned",
        max_length=9,
        use_bias=False,
        scale_tied_logits=False,
        **COMMON,
    ),
    Tokens(11),
)

RENAMED = {
    r"^transformer_block_(\d)": r"blocks/block_\1",
    r"norm1/": "attention_norm/",
    r"norm2/": "feedforward_norm/",
    r"relative_embedding/rel_embedding": "attention/relative_bias",
    r"sequence_mixer": "attention",
    r"decoder_norm|out_ln": "final_norm",
    r"^(embedding|embed)/embedding": "embed/table",
    r"^embedding/": "embed/",
    r"logitdense": "head",
    r"^pos_embed/embedding": "position_embed/table",
    r"^blocks_(\d)": r"blocks/block_\1",
    r"LayerNorm_0": "attention_norm",
    r"LayerNorm_1": "feedforward_norm",
    r"CausalAttn_0/attn_out_proj": "attention/out",
    r"CausalAttn_0": "attention",
    r"state_mixer|Mlp_0": "feedforward",
}
DENSE_LAYERS = {"gelu": ("up", "down"), "swiglu": ("gate", "up", "down")}

# Both sides are float32 and two layers deep: each layer rounds by some 1e-7 of its largest entry.
OUTPUT_TOLERANCE = 1e-5
# Gradients sum over every position and pass RMSHead and LayerNorm, which divide by small sums.
GRADIENT_TOLERANCE = 2e-4


def our_path(theirs: str, feedforward: str) -> str:
    for pattern, ours in RENAMED.items():
        theirs = re.sub(pattern, ours, theirs)
    names = DENSE_LAYERS[feedforward]
    return re.sub(r"Dense_(\d)", lambda match: names[int(match[1])], theirs)


def inputs_of(arrays: dict[str, np.ndarray]) -> jax.Array:
    return jnp.asarray(arrays["x"] if "x" in arrays else arrays["tokens"])


def logits_and_gradients(
    model: Decoder, params: Params, arrays: dict[str, np.ndarray]
) -> tuple[jax.Array, Params]:
    def loss(params: Params) -> tuple[jax.Array, jax.Array]:
        logits = model.apply({"params": params}, inputs_of(arrays))
        return jnp.sum(logits * arrays["ct"]), logits

    differentiated = jax.value_and_grad(loss, has_aux=True)
    (_, logits), gradients = jax.jit(differentiated, compiler_options=QUICK_COMPILE)(params)
    return logits, gradients


def params_of(arrays: dict[str, np.ndarray], prefix: str, model: Decoder) -> Params:
    """A fixture's parameters (or their gradients) as the tree of our model."""
    return tree_of(arrays, prefix, lambda path: our_path(path, model.config.feedforward))


@pytest.mark.parametrize("implementation", ["reference", "blocked"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_every_gradient(golden: Load, name: str, implementation: str) -> None:
    arrays, model = golden(name), MODELS[name]
    model = model.clone(config=replace(model.config, attention_implementation=implementation))
    logits, gradients = logits_and_gradients(model, params_of(arrays, "param", model), arrays)
    assert_close(logits, arrays["logits"], OUTPUT_TOLERANCE)
    expected = params_of(arrays, "grad_param", model)
    assert jax.tree.map(jnp.shape, shapes(model, inputs_of(arrays))) == jax.tree.map(
        jnp.shape, expected
    )
    assert_close(gradients, expected, GRADIENT_TOLERANCE)


@pytest.mark.parametrize("name", AUTHORS_MODELS)
def test_latent_codes_of_each_layer(golden: Load, name: str) -> None:
    arrays, model = golden(name), MODELS[name]
    params = params_of(arrays, "param", model)

    @jax.jit
    def codes_of_layers(params: Params, inputs: jax.Array) -> list[jax.Array]:
        return [view.code_BxHxTxS for view in attention_layers(model, params, inputs)]

    for layer, code in enumerate(codes_of_layers(params, inputs_of(arrays))):
        assert_close(code, arrays[f"attn_weights_layer{layer}"], OUTPUT_TOLERANCE)
