"""Names and layouts of parameters: by paths as in checkpoints, and by names as in PyTorch."""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder

WEIGHTS = ("kernel", "table", "scale")
PREFIX = "decoder."  # of the names in a folder that transformers saved


def flat_parameters(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Parameters by path, such as blocks/block_0/attention/query/kernel, a layer each."""
    flat = {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    return _one_block_each(flat, config) if config.scan_layers else flat


def to_tensors(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers as PyTorch names them and lays them out."""
    return {_tensor_name(path): _as_tensor(path, array) for path, array in flat.items()}


def from_tensors(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, vocab_size: int, source: str
) -> dict[str, np.ndarray]:
    """Parameters by path; raises UserError, naming the source, for tensors of another model."""
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    numbers = sum(tensor.size for tensor in tensors.values())
    if config.num_layers * config.model_dim > numbers:
        raise UserError(
            f"{source} has {numbers:,} numbers, and by config.json {config.num_layers:,} layers of "
            f"width {config.model_dim:,}: export again."
        )
    shapes = shapes_of(config, vocab_size)
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    wanted = {
        _tensor_name(path): (_tensor_shape(path, leaf.shape), leaf.dtype)
        for path, leaf in shapes.items()
    }
    for name in sorted({*found, *wanted}):
        if found.get(name) != wanted.get(name):
            raise UserError(
                f"{source}: {name} is {found.get(name)}, and by config.json it is "
                f"{wanted.get(name)}: export again."
            )
    flat = {}
    for path, leaf in shapes.items():
        tensor = tensors[_tensor_name(path)]
        flat[path] = (tensor.T if path.endswith("/kernel") else tensor).reshape(leaf.shape)
    return flat


def shapes_of(config: ModelConfig, vocab_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of each parameter by path."""
    model = Decoder(config, Tokens(vocab_size))
    ids = jax.ShapeDtypeStruct((1, 1), "int32")
    shapes = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    return flatten_dict(shapes, sep="/")


def _tensor_name(path: str) -> str:
    *folders, name = path.replace("blocks/block_", "blocks/").split("/")
    return ".".join([*folders, "weight" if name in WEIGHTS else name])


def _as_tensor(path: str, array: np.ndarray) -> np.ndarray:
    """A dense kernel becomes outputs x inputs, its bias a vector; all else stays."""
    shape = _tensor_shape(path, array.shape)
    if path.endswith("/kernel"):
        return np.ascontiguousarray(array.reshape(shape[::-1]).T)
    return np.ascontiguousarray(array.reshape(shape))


def _tensor_shape(path: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if path.endswith("/bias"):
        return (math.prod(shape),)
    if not path.endswith("/kernel"):
        return shape
    inputs = len(shape) - 1 if path.endswith("/out/kernel") else 1
    return math.prod(shape[inputs:]), math.prod(shape[:inputs])


def _one_block_each(flat: Mapping[str, np.ndarray], config: ModelConfig) -> dict[str, np.ndarray]:
    """Scanned repeats of the pattern, which lie along a leading axis, as separate blocks."""
    unstacked = {}
    for path, array in flat.items():
        match = re.match(r"blocks/block_(\d+)/(.*)", path)
        if match is None:
            unstacked[path] = array
            continue
        for repeat, part in enumerate(array):
            layer = repeat * len(config.pattern) + int(match[1])
            unstacked[f"blocks/block_{layer}/{match[2]}"] = part
    return unstacked
