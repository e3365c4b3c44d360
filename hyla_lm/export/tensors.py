"""Names and layouts of parameters: by path as in checkpoints, and by name as in PyTorch."""

import math
import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hyla_lm.errors import UserError
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import path_of

WEIGHTS = ("kernel", "table", "scale")
PREFIX = "decoder."  # of the names in a folder that transformers saved


def flat_parameters(params: Any, config: ModelConfig) -> dict[str, np.ndarray]:
    """Parameters by path, such as blocks/block_0/attention/query/kernel, a layer each."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    flat = {path_of(path): np.asarray(leaf) for path, leaf in leaves}
    return _one_block_each(flat, config) if config.scan_layers else flat


def nested_parameters(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The tree that a decoder takes, of parameters by path."""
    tree: dict[str, Any] = {}
    for path, array in flat.items():
        *folders, name = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = jax.numpy.asarray(array)
    return tree


def to_tensors(flat: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same numbers as PyTorch names them and lays them out."""
    return {_tensor_name(path): _as_tensor(path, array) for path, array in flat.items()}


def from_tensors(
    tensors: Mapping[str, np.ndarray], config: ModelConfig, vocab_size: int, source: str
) -> dict[str, np.ndarray]:
    """Parameters by path; raises UserError, naming the source, for tensors of another model."""
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    shapes = shapes_of(config, vocab_size)
    names = {path: _tensor_name(path) for path in shapes}
    if strange := sorted(set(tensors) ^ set(names.values())):
        how = "holds a" if strange[0] in tensors else "lacks the"
        raise UserError(
            f"{source} {how} tensor {strange[0]!r}, unlike its config.json: replace it."
        )
    flat = {}
    for path, leaf in shapes.items():
        tensor, wanted = tensors[names[path]], _tensor_shape(path, leaf.shape)
        if (tensor.shape, tensor.dtype) != (wanted, leaf.dtype):
            raise UserError(
                f"{source}: {names[path]} is {tensor.dtype} {tensor.shape}, and by config.json it "
                f"is {leaf.dtype} {wanted}: replace it."
            )
        rows = tensor.T if path.endswith("/kernel") else tensor
        flat[path] = rows.reshape(leaf.shape)
    return flat


def shapes_of(config: ModelConfig, vocab_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of each parameter by path."""
    model = Decoder(config, Tokens(vocab_size))
    ids = jax.ShapeDtypeStruct((1, 1), "int32")
    leaves = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    )
    return {path_of(path): leaf for path, leaf in leaves}


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
