"""hyla-lm inspect: what a checkpoint holds, whether it is whole, how it differs from another."""

import json
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from etils import epath

from hyla_lm.checkpoint.checkpoint import Checkpointer, differences
from hyla_lm.checkpoint.saved_files import told_of_changes
from hyla_lm.errors import UserError
from hyla_lm.logs.costs import SECONDS
from hyla_lm.parallel.mesh import path_of
from hyla_lm.storage import as_path

ALIKE, DIFFERENT = 0, 1
MEGABYTE = 1e6


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read whole: its arrays by path, its data position and its meta."""

    path: epath.Path
    steps: list[int]
    step: int
    arrays: dict[str, np.ndarray]
    data: dict[str, Any]
    meta: dict[str, Any]


def read_checkpoint(workdir: str, step: int | None) -> Checkpoint:
    """The checkpoint of a step, by default the newest; raises UserError for a damaged one."""
    path = as_path(workdir)
    if not (path / "checkpoints").exists():
        raise UserError(f"--workdir={workdir} has no checkpoints: give the folder of a run.")
    checkpoints = Checkpointer(path / "checkpoints", keep=None)
    step = checkpoints.choose(step)
    meta = checkpoints.meta(step)
    state, data = checkpoints.contents(step, meta)
    checkpoints.close()
    leaves = jax.tree_util.tree_leaves_with_path(state)
    arrays = {path_of(place): np.asarray(leaf) for place, leaf in leaves}
    return Checkpoint(path, checkpoints.steps(), step, arrays, data, meta)


def description(found: Checkpoint) -> list[str]:
    """What a person wants to know of a checkpoint, a line each."""
    meta, bad = found.meta, _not_finite(found)
    verified = f"{len(found.arrays)} arrays, data and meta equal their checksums"
    if "checksums" not in meta:
        verified = "no checksums: it was saved by an older version"
    return [
        f"{found.path}: checkpoints of steps {', '.join(map(str, found.steps))}",
        f"step {found.step}: {verified}",
        *filter(None, [told_of_changes(found.path, found.step)]),
        f"not finite: {', '.join(bad)}" if bad else "all numbers are finite",
        f"saved with {_in_line(meta['versions'])}",
        f"numerics: {_in_line(meta.get('numerics', {})) or 'not known'}",
        f"data position: {json.dumps(found.data['streams'])}",
        *_table(found),
    ]


def comparison(one: Checkpoint, other: Checkpoint) -> list[str]:
    """How another checkpoint differs, a line each; empty for two that are alike to the last bit."""
    lines = []
    for part in ("identity", "versions", "numerics"):
        for name, here, there in differences(one.meta.get(part, {}), other.meta.get(part, {})):
            lines.append(f"{part} {name}: {here!r}, there {there!r}")
    here, there = (_position(found) for found in (one, other))
    if here != there:
        lines.append(f"data position: {json.dumps(here)}, there {json.dumps(there)}")
    for name in sorted({*one.arrays, *other.arrays}):
        said = _difference(one.arrays.get(name), other.arrays.get(name))
        lines += [f"{name}: {said}"] if said else []
    return lines


def _position(found: Checkpoint) -> dict[str, Any]:
    """The position in the data, and sums not yet logged; not what the run cost."""
    return {name: value for name, value in found.data.items() if name != SECONDS}


def run(workdir: str, step: int | None, against: str | None) -> int:
    """Prints a checkpoint, or how it differs from that of another run; status 1 if it does."""
    found = read_checkpoint(workdir, step)
    if against is None:
        print("\n".join(description(found)))
        return ALIKE
    other = read_checkpoint(against, step)
    lines = comparison(found, other)
    named = f"step {found.step} of {found.path} and step {other.step} of {other.path}"
    print(f"{named} {'differ' if lines else 'are equal to the last bit'}", *lines, sep="\n")
    return DIFFERENT if lines else ALIKE


def _difference(here: np.ndarray | None, there: np.ndarray | None) -> str:
    if here is None or there is None:
        return "only there" if here is None else "only here"
    if (here.shape, here.dtype) != (there.shape, there.dtype):
        return f"{_kind(here)}, there {_kind(there)}"
    if here.tobytes() == there.tobytes():
        return ""
    apart = np.abs(here.astype(np.float64) - there.astype(np.float64))
    return (
        f"{np.count_nonzero(apart):,} of {apart.size:,} numbers differ, by up to {apart.max():.3g}"
    )


def _not_finite(found: Checkpoint) -> list[str]:
    return [name for name, array in found.arrays.items() if not np.all(np.isfinite(array))]


def _table(found: Checkpoint) -> list[str]:
    width = max(len(name) for name in found.arrays)
    total = sum(array.nbytes for array in found.arrays.values())
    rows = [
        f"{name:{width}}  {_kind(array):24} {array.nbytes / MEGABYTE:10.3f} MB"
        for name, array in found.arrays.items()
    ]
    return [*rows, f"{'in all':{width}}  {'':24} {total / MEGABYTE:10.3f} MB"]


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {' x '.join(map(str, array.shape)) or 'scalar'}"


def _in_line(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", None))
