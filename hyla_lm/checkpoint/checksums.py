"""Whether a checkpoint still holds what was saved: checksums of arrays, hashes of the rest.

The checksum of an array is the sum over its 32-bit words of word x weight, modulo 2**32. A weight
is a product of odd numbers, one for the index on each axis, so that any change of one word changes
the sum, and a word in another place as well. Sums of shards add to that of the whole, so one mesh
may save and another restore.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from hyla_lm.parallel import processes
from hyla_lm.parallel.sharding import path_of

EVEN = 0x9E3779B2
WORD_BYTES = 4
CHECKPOINTS = "checkpoints"  # in the folder of a run


def checksums(tree: Any) -> dict[str, str]:
    """The checksum of each array of a tree by its path; all processes must call it.

    Each process sums the shards that it holds and that no other counts.
    """
    own = {name: _sum_of_own_shards(leaf) for name, leaf in leaves_by_path(tree).items()}
    everyone = processes.gather(own)
    return {name: f"{sum(sums[name] for sums in everyone) % 2**32:08x}" for name in own}


def leaves_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by the names in their path, joined by slashes."""
    return {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def sha256_of(value: Any) -> str:
    """The hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its own hash as `sha256`."""
    return {**value, "sha256": sha256_of(value)}


def is_sealed(value: Mapping[str, Any]) -> bool:
    """Whether the hash of a sealed object is that of its content."""
    content = {name: entry for name, entry in value.items() if name != "sha256"}
    return value.get("sha256") == sha256_of(content)


def _sum_of_own_shards(array: jax.Array) -> int:
    shards = [shard for shard in array.addressable_shards if shard.replica_id == 0]
    sums = (_sum(np.asarray(s.data), [part.start or 0 for part in s.index]) for s in shards)
    return sum(sums) % 2**32


def _sum(part: np.ndarray, starts: Sequence[int]) -> int:
    """The sum of a part of an array that begins at these indices, one for each axis."""
    sums, starts = _words(part), [*starts, 0]
    for axis in reversed(range(sums.ndim)):
        index = np.arange(starts[axis], starts[axis] + sums.shape[axis], dtype=np.uint32)
        sums = np.einsum("...i,i->...", sums, index * _factor(axis) + np.uint32(1))
    return int(sums)


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array as 32-bit words, on an axis more where a number has several."""
    if array.dtype.itemsize > WORD_BYTES:
        return np.ascontiguousarray(array).reshape(*array.shape, 1).view(np.uint32)
    return array.view(f"u{array.dtype.itemsize}").astype(np.uint32, copy=False)


def _factor(axis: int) -> np.uint32:
    """An even number of an axis: its product with an index, plus 1, is odd."""
    return np.uint32(EVEN * (2 * axis + 1) % 2**32)
