"""A table of the part of each parameter that a device holds."""

import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from hyla_lm.parallel.mesh import parameter_spec, path_of

BLOCK = re.compile(r"block_\d+")


@dataclass(frozen=True)
class Held:
    """One parameter, or `count` equal ones of several blocks, and the part that a device holds.

    `axes` has the mesh axis that divides each dimension; None for a whole dimension.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[str | None, ...]
    bytes_per_device: int
    count: int = 1


def sharding_table(params: Any, mesh: Mesh) -> list[Held]:
    """A row for each parameter, in the order of the tree; leaves may be arrays or shapes."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return [_held(path_of(path), leaf, mesh) for path, leaf in leaves]


def merged(table: list[Held]) -> list[Held]:
    """The table with the equal parameters of several blocks in one row, `block_*`."""
    rows = Counter(replace(held, path=BLOCK.sub("block_*", held.path)) for held in table)
    return [replace(held, count=count) for held, count in rows.items()]


def lines(table: list[Held]) -> list[str]:
    """The merged table for a terminal, with the sum of bytes below."""
    cells = [
        (
            held.path + (f" ({held.count})" if held.count > 1 else ""),
            " x ".join(map(str, held.shape)),
            " x ".join(axis or "whole" for axis in held.axes),
            f"{held.bytes_per_device * held.count:,} B",
        )
        for held in merged(table)
    ]
    total = sum(held.bytes_per_device for held in table)
    cells.append(("parameters on a device", "", "", f"{total:,} B"))
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return [
        "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
        for row in cells
    ]


def _held(path: str, leaf: Any, mesh: Mesh) -> Held:
    sharding = NamedSharding(mesh, parameter_spec(path, leaf.shape, mesh))
    local = sharding.shard_shape(leaf.shape)
    spec = (*sharding.spec, *[None] * (len(leaf.shape) - len(sharding.spec)))
    axes = tuple(axis if axis and mesh.shape[axis] > 1 else None for axis in spec)
    return Held(path, leaf.shape, str(leaf.dtype), axes, math.prod(local) * leaf.dtype.itemsize)
