"""Whether a checkpoint still holds what was saved: checksums, hashes, and a note on its files.

The checksum of an array is the sum over its 32-bit words of word x weight, modulo 2**32. A weight
is a product of odd numbers, one for the index on each axis, so that any change of one word changes
the sum, and a word in another place as well. Sums of shards add to that of the whole, so one mesh
may save and another restore.
"""

import hashlib
import json
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath

from hyla_lm.parallel import processes
from hyla_lm.parallel.sharding import path_of
from hyla_lm.storage import bucket_of, read_whole

EVEN = 0x9E3779B2
WORD_BYTES = 4
# Words that are multiplied by a vector of weights at a time: it stays in the cache.
LONGEST_ROW = 2**15
CHECKPOINTS, SAVED_NOTE = "checkpoints", ".saved"  # in the folder of a run
LARGEST_READ_BYTES = 8 << 20  # larger files hold arrays, which have checksums


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
    starts = [[part.start or 0 for part in shard.index] for shard in shards]
    parts = zip((np.asarray(shard.data) for shard in shards), starts, strict=True)
    return sum(weighted_sum(part, start) for part, start in parts) % 2**32


def weighted_sum(part: np.ndarray, starts: Sequence[int]) -> int:
    """The sum of a part of an array that begins at these indices, one for each axis."""
    words, starts = _words(part), [*starts, 0]
    weights = [
        np.arange(start, start + size, dtype=np.uint32) * _factor(axis) + np.uint32(1)
        for axis, (start, size) in enumerate(zip(starts, words.shape, strict=True))
    ]
    first = 0
    while math.prod(words.shape[first:]) > LONGEST_ROW and first < words.ndim - 1:
        first += 1
    columns, rows = _products(weights[first:]), _products(weights[:first])
    of_rows = np.einsum("ij,j->i", words.reshape(rows.size, columns.size), columns)
    return int(np.sum(of_rows * rows, dtype=np.uint32))


def _words(array: np.ndarray) -> np.ndarray:
    """The bits of an array as 32-bit words, on an axis more."""
    contiguous = np.ascontiguousarray(array).reshape(*array.shape, 1)
    if array.dtype.itemsize >= WORD_BYTES:
        return contiguous.view(np.uint32)
    return contiguous.view(f"u{array.dtype.itemsize}").astype(np.uint32)


def _factor(axis: int) -> np.uint32:
    """An even number of an axis: its product with an index, plus 1, is odd."""
    return np.uint32(EVEN * (2 * axis + 1) % 2**32)


def _products(weights: Sequence[np.ndarray]) -> np.ndarray:
    """The product of a weight of each axis, for all indices of these axes in order."""
    product = np.ones(1, np.uint32)
    for weight in weights:
        product = np.multiply.outer(product, weight).ravel()
    return product


# The note is written when a save has ended. It shows when all checkpoints are gone, and when a file
# has changed that a restore does not read.


def note_of_saved(run: epath.Path, step: int, kept: Collection[int]) -> str:
    """The content of a run's note once this step is saved whole and these are kept."""
    before = saved_note(run)["files"]
    files = {str(saved): before[str(saved)] for saved in kept if str(saved) in before}
    if not bucket_of(run):
        files[str(step)] = _fingerprints(Path(run) / CHECKPOINTS / str(step))
    return json.dumps({"step": step, "files": files}) + "\n"


def saved_note(run: epath.Path) -> dict[str, Any]:
    """The note on saved steps; one that is missing or damaged knows nothing."""
    nothing: dict[str, Any] = {"step": None, "files": {}}
    try:
        note = json.loads(read_whole(run / SAVED_NOTE) or b"{}")
    except (ValueError, RecursionError):
        return nothing
    is_note = isinstance(note, dict) and isinstance(note.get("files"), dict)
    return note if is_note and isinstance(note.get("step"), int) else nothing


def changes_since_save(run: epath.Path, step: int) -> list[str]:
    """The files of a checkpoint that are not as they were when its save ended."""
    noted = saved_note(run)["files"].get(str(step))
    if noted is None or bucket_of(run):
        return []
    now = _fingerprints(Path(run) / CHECKPOINTS / str(step))
    return sorted(name for name in {*noted, *now} if noted.get(name) != now.get(name))


def describe_changes(run: epath.Path, step: int) -> str:
    """A sentence on files that have changed although all that was read is whole; or nothing."""
    changed = ", ".join(changes_since_save(run, step))
    where = run / CHECKPOINTS / str(step)
    sentence = f"{where}: {changed} changed since the save, but not what a restore reads"
    return f"{sentence}: check the disk" if changed else ""


def _fingerprints(folder: Path) -> dict[str, list[int]]:
    """Size and, of files that are not large, CRC-32 by the path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _fingerprint(path) for path in paths}


def _fingerprint(path: Path) -> list[int]:
    size = path.stat().st_size
    return [size] if size > LARGEST_READ_BYTES else [size, zlib.crc32(path.read_bytes())]
