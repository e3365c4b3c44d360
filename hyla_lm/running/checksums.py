"""Checksums that tell whether a checkpoint still holds what was saved.

The checksum of an array is the sum over its 32-bit words of word x weight, modulo 2**32. A weight
is the product of an odd number for the row and one for the column, so that any change of one word
changes the sum, and a word in another place as well. Sums of shards add to that of the whole, so
one mesh may save and another restore.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from hyla_lm.parallel import multihost
from hyla_lm.parallel.mesh import path_of

ROW, COLUMN = np.uint32(0x9E3779B2), np.uint32(0x85EBCA6A)  # even: times any number plus 1 is odd
WORD_BYTES = 4
THREADS = 8


def checksums(tree: Any) -> dict[str, str]:
    """The checksum of each array of a tree by its path; all processes must call it.

    Each process sums the shards that it holds and that no other counts.
    """
    leaves = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
    with ThreadPoolExecutor(THREADS) as pool:
        own = dict(zip(leaves, pool.map(_sum_of_own_shards, leaves.values()), strict=True))
    everyone = multihost.gather(own)
    return {name: f"{sum(sums[name] for sums in everyone) % 2**32:08x}" for name in leaves}


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
    return sum(_weighted_sum(np.asarray(s.data), s.index, array.shape) for s in shards) % 2**32


def _weighted_sum(part: np.ndarray, index: tuple[slice, ...], shape: tuple[int, ...]) -> int:
    """The sum of a part of an array of this shape; rows are all axes but the last."""
    if part.size == 0:
        return 0
    missing = max(2 - len(shape), 0)
    shape, index = (1,) * missing + shape, (slice(None),) * missing + index
    *leading, last = (range(n)[part] for n, part in zip(shape, index, strict=True))
    rows = np.zeros((), np.uint32)
    for size, places in zip(shape, leading, strict=False):
        rows = rows[..., None] * np.uint32(size) + np.array(places, np.uint32)
    words = _words(part).reshape(rows.size, -1)
    per_column = words.shape[1] // len(last)
    columns = np.arange(last.start * per_column, last.stop * per_column, dtype=np.uint32)
    of_rows = np.einsum("ij,j->i", words, columns * COLUMN + np.uint32(1))
    return int(np.sum(of_rows * (rows.ravel() * ROW + np.uint32(1)), dtype=np.uint32))


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array as 32-bit words."""
    flat = np.ascontiguousarray(array).ravel()
    if array.dtype.itemsize >= WORD_BYTES:
        return flat.view(np.uint32)
    return flat.view(f"u{array.dtype.itemsize}").astype(np.uint32)
