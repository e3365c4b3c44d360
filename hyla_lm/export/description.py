"""config.json of an exported model, in the terms of the field, and the way back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import jax.numpy as jnp
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import LONGEST_ROW, ModelConfig
from hyla_lm.model.layers import EPSILON, relative_buckets
from hyla_lm.model.width import tied_logit_scale

MODEL_TYPE = "hyla"
# The entry of config.json that holds each field of ModelConfig unchanged.
ENTRIES = {
    "num_layers": "num_hidden_layers",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "head_dim": "head_dim",
    "value_dim": "value_head_dim",
    "num_kv_heads": "num_key_value_heads",
    "qk_norm": "qk_norm",
    "gated_attention": "gated_attention",
    "mlp_dim": "intermediate_size",
    "positions": "position_embedding_type",
    "rope_theta": "rope_theta",
    "max_length": "max_position_embeddings",
    "relative_buckets": "relative_attention_num_buckets",
    "relative_max_distance": "relative_attention_max_distance",
    "feedforward": "mlp_type",
    "num_experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "norm": "norm_type",
    "use_bias": "use_bias",
    "tie_embeddings": "tie_word_embeddings",
    "logit_soft_cap": "final_logit_softcapping",
    "base_width": "base_hidden_size",
    "base_head_dim": "base_head_dim",
    "dtype": "activation_dtype",
    "value_activation": "value_activation",
    "scale_tied_logits": "scale_tied_logits",
}
# What follows from those and from hyla_lm, and must be as it was.
FOLLOWING = ("attention_pattern", "layer_norm_eps", "logit_scale")
# Fields that change no logits of an exported model.
LEFT_OUT = {"attention_implementation", "attention_dropout", "causal", "remat", "scan_layers"}
# What modeling_hyla.py knows of attention; it has all positions, feed-forwards and norms.
NORMALIZATIONS = ("softmax", "identity", "rms_head", "softmax_rms_head")
ACTIVATIONS = ("identity", "relu", "silu", "gelu", "gelu_erf", "sigmoid", "tanh")


def check_exportable(config: ModelConfig) -> None:
    """Raises UserError for a setting that modeling_hyla.py cannot run."""
    if not config.causal:
        raise UserError(
            "ModelConfig.causal = False cannot be exported: an exported model predicts the next "
            "token from those before it; train one with ModelConfig.causal = True."
        )
    for layer in range(len(config.pattern)):
        spec = config.spec(layer)
        if spec.normalization not in NORMALIZATIONS or spec.activation not in ACTIVATIONS:
            raise UserError(
                f"ModelConfig.attention = {config.attention!r} cannot be exported: "
                f"hyla_lm/export/modeling_hyla.py does not know {spec}; add it there."
            )


def describe_model(config: ModelConfig, vocab_size: int, sequence_length: int) -> dict[str, Any]:
    """The content of config.json, but for special tokens and the step."""
    fields = {entry: getattr(config, name) for name, entry in ENTRIES.items()}
    layers = range(len(config.pattern))
    rows = config.max_length if config.positions == "learned" else sequence_length
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["HylaForCausalLM"],
        "auto_map": {
            "AutoConfig": "transformers_hyla.HylaConfig",
            "AutoModelForCausalLM": "transformers_hyla.HylaForCausalLM",
        },
        "vocab_size": vocab_size,
        **fields,
        "value_head_dim": config.value_size,
        "attention_pattern": [
            {"variant": config.pattern[layer], **asdict(config.spec(layer))} for layer in layers
        ],
        "relative_attention_first_distances": _first_distances(config),
        "layer_norm_eps": EPSILON,
        "logit_scale": tied_logit_scale(config),
        "max_position_embeddings": rows,
        "sequence_length": sequence_length,
        "dtype": "float32",
    }


def model_config_of(entries: Mapping[str, Any], source: str) -> ModelConfig:
    """The ModelConfig of a config.json; raises UserError, naming the source, if it has none."""
    try:
        fields = {name: entries[entry] for name, entry in ENTRIES.items()}
        names = tuple(kind["variant"] for kind in entries["attention_pattern"])
        fields["attention"] = names[0] if len(names) == 1 else names
        config = ModelConfig(**fields)
        sizes = entries["vocab_size"], entries["sequence_length"], entries.get("step", 0)
        if any(type(size) is not int or size < 0 for size in sizes):
            raise TypeError(f"{sizes} are no sizes and step")
        if sizes[1] > LONGEST_ROW:
            raise TypeError(f"sequence_length {sizes[1]} is above {LONGEST_ROW}")
    except (LookupError, TypeError) as error:
        raise UserError(
            f"{source} describes no model of hyla_lm ({error}): export again."
        ) from error
    described = describe_model(config, *sizes[:2])
    for name in FOLLOWING:
        if entries.get(name) != described[name]:
            raise UserError(
                f"{source} has another {name} than hyla_lm has for such a model: export again."
            )
    return config


def _first_distances(config: ModelConfig) -> list[int] | None:
    """The first distance of each bucket of the T5 bias, so that no logarithm is taken elsewhere."""
    if config.positions != "relative":
        return None
    distance = jnp.arange(config.relative_max_distance + 1)
    buckets, farthest = config.relative_buckets, config.relative_max_distance
    of_distance = np.asarray(relative_buckets(distance, jnp.zeros(1, int), buckets, farthest))[:, 0]
    return np.searchsorted(of_distance, np.arange(buckets)).tolist()


def special_ids(tokenizer: Tokenizer) -> dict[str, int | None]:
    """The ids that begin, end and pad a text, by the names that transformers uses.

    Where PAD begins texts, EOS pads: `generate` hides all PADs of ids that come without a mask.
    """
    pad = tokenizer.special_ids["pad"]
    pad = tokenizer.eos if pad == tokenizer.bos else pad
    named = {"bos": tokenizer.bos, "eos": tokenizer.eos, "pad": None if pad < 0 else pad}
    return {f"{name}_token_id": index for name, index in named.items()}


def tokenizer_config(tokenizer: Tokenizer, longest: int) -> dict[str, Any]:
    """The content of tokenizer_config.json: special pieces, and the longest row in tokens."""
    ids = {**tokenizer.special_ids, "bos": tokenizer.bos}
    special = {
        f"{name}_token": tokenizer.processor.IdToPiece(index)
        for name, index in ids.items()
        if index >= 0
    }
    return {
        "tokenizer_class": "HylaTokenizer",
        "auto_map": {"AutoTokenizer": ["transformers_hyla.HylaTokenizer", None]},
        "model_max_length": longest,
        **special,
    }
