"""hyla-lm inspect: what a checkpoint holds, whether it is whole, how it differs from another."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from etils import epath

from hyla_lm.checkpoint.checkpoint import differences, read_checkpoints
from hyla_lm.checkpoint.checksums import describe_changes, leaves_by_path
from hyla_lm.storage import as_path

EQUAL, DIFFERENT = 0, 1
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


def run(workdir: str, step: int | None, against: str | None) -> int:
    """Prints a checkpoint, or how it differs from that of another run; status 1 if it does."""
    checkpoint = read_checkpoint(workdir, step)
    if against is None:
        print("\n".join(description(checkpoint)))
        return EQUAL
    other = read_checkpoint(against, step)
    lines = comparison(checkpoint, other)
    both = f"step {checkpoint.step} of {checkpoint.path} and step {other.step} of {other.path}"
    print(f"{both} {'differ' if lines else 'are equal to the last bit'}", *lines, sep="\n")
    return DIFFERENT if lines else EQUAL


def read_checkpoint(workdir: str, step: int | None) -> Checkpoint:
    """The checkpoint of a step, by default the newest; raises UserError for a damaged one."""
    path = as_path(workdir)
    with read_checkpoints(path, f"--workdir={workdir}") as checkpoints:
        step = checkpoints.choose(step)
        meta = checkpoints.meta(step)
        state, data = checkpoints.contents(step, meta)
        arrays = {name: np.asarray(leaf) for name, leaf in leaves_by_path(state).items()}
        return Checkpoint(path, checkpoints.steps(), step, arrays, data, meta)


def description(checkpoint: Checkpoint) -> list[str]:
    """What a person wants to know of a checkpoint, a line each."""
    meta, arrays = checkpoint.meta, checkpoint.arrays
    bad = [name for name, array in arrays.items() if not np.all(np.isfinite(array))]
    return [
        f"{checkpoint.path}: checkpoints of steps {', '.join(map(str, checkpoint.steps))}",
        f"step {checkpoint.step}: {len(arrays)} arrays, data and meta equal their checksums",
        *filter(None, [describe_changes(checkpoint.path, checkpoint.step)]),
        f"not finite: {', '.join(bad)}" if bad else "all numbers are finite",
        f"saved with {_in_line(meta['versions'])}",
        f"numerics: {_in_line(meta['numerics'])}",
        f"data position: {json.dumps(checkpoint.data['streams'])}",
        *_table(arrays),
    ]


def comparison(one: Checkpoint, other: Checkpoint) -> list[str]:
    """How another checkpoint differs, a line each; empty if both are equal to the last bit."""
    lines = [
        f"{part} {name}: {here!r}, there {there!r}"
        for part in ("identity", "versions", "numerics")
        for name, here, there in differences(one.meta[part], other.meta[part])
    ]
    # The position in the data, and sums not yet logged; not the seconds that earlier versions kept.
    here, there = ({k: v for k, v in c.data.items() if k != "seconds"} for c in (one, other))
    if here != there:
        lines.append(f"data position: {json.dumps(here)}, there {json.dumps(there)}")
    for name in sorted({*one.arrays, *other.arrays}):
        difference = _difference(one.arrays.get(name), other.arrays.get(name))
        lines += [f"{name}: {difference}"] if difference else []
    return lines


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


def _table(arrays: Mapping[str, np.ndarray]) -> list[str]:
    width = max(len(name) for name in arrays)
    total = sum(array.nbytes for array in arrays.values())
    rows = [
        f"{name:{width}}  {_kind(array):24} {array.nbytes / MEGABYTE:10.3f} MB"
        for name, array in arrays.items()
    ]
    return [*rows, f"{'in all':{width}}  {'':24} {total / MEGABYTE:10.3f} MB"]


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {' x '.join(map(str, array.shape)) or 'scalar'}"


def _in_line(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", None))
