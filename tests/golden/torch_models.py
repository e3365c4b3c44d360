"""Small models that PyTorch and JAX must agree on, and where their logits are kept."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from hyla_lm.export.description import describe_model
from hyla_lm.export.tensors import shapes_of, to_tensors
from hyla_lm.model.config import ModelConfig

FOLDER = Path(__file__).parent / "torch"
VOCABULARY, LENGTH, ROWS = 17, 9, 3
SIZES: dict[str, Any] = dict(
    num_layers=2, model_dim=12, num_heads=3, head_dim=4, mlp_dim=10, dtype="float32"
)
MODELS = {
    "softmax": ModelConfig(attention="softmax", positions="learned", max_length=LENGTH, **SIZES),
    "linear": ModelConfig(attention="linear", tie_embeddings=False, use_bias=False, **SIZES),
    "hyla": ModelConfig(attention="hyla", feedforward="swiglu", value_dim=5, **SIZES),
    "hyla_deep": ModelConfig(
        attention=("hyla_deep", "hyla_softmax"),
        positions="relative",
        relative_buckets=4,
        relative_max_distance=8,
        feedforward="moe",
        scale_tied_logits=False,
        **SIZES,
    ),
    "modern": ModelConfig(
        attention=("softmax", "hyla", "linear"),
        norm="rms",
        qk_norm=True,
        gated_attention=True,
        logit_soft_cap=1.5,
        scale_tied_logits=False,
        value_dim=5,
        **{**SIZES, "num_layers": 3},
    ),
    "grouped": ModelConfig(
        attention="softmax", num_kv_heads=2, qk_norm=True, **{**SIZES, "num_heads": 4}
    ),
}


def token_ids() -> np.ndarray:
    """Rows of ids, ROWS x LENGTH, none like another."""
    place = np.arange(ROWS * LENGTH).reshape(ROWS, LENGTH)
    return (place * place + 3 * place) % VOCABULARY


def formula(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The parameter of this name: 0.6 sin(1.7 i + seed) of its i-th number, seed from its name.

    Scales of norms are around 1 instead of 0.
    """
    seed = zlib.crc32(name.encode()) % 1000
    waves = 0.6 * np.sin(1.7 * np.arange(np.prod(shape)) + seed).reshape(shape)
    return (waves + name.endswith("norm.weight")).astype(np.float32)


def tensors_of(config: ModelConfig) -> dict[str, np.ndarray]:
    """The parameters of a model as PyTorch names them, by the formula."""
    zeros = {path: np.zeros(leaf.shape) for path, leaf in shapes_of(config, VOCABULARY).items()}
    return {name: formula(name, x.shape) for name, x in to_tensors(zeros).items()}


def read(name: str) -> tuple[dict[str, Any], np.ndarray]:
    """The config.json that is kept of a model, and its logits from PyTorch."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return json.loads(str(arrays["config"])), arrays["logits"]


def described(config: ModelConfig) -> dict[str, Any]:
    return describe_model(config, VOCABULARY, LENGTH)
