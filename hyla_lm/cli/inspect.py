"""Example: hyla-lm inspect runs/mine"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

HELP = "what a checkpoint holds, and if it is whole"
MEGABYTE = 1e6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workdir", help="folder of a run with checkpoints")
    parser.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import numpy as np

    from hyla_lm.checkpoint.checkpoint import read_checkpoints
    from hyla_lm.checkpoint.checksums import leaves_by_path
    from hyla_lm.storage import as_path

    path = as_path(options.workdir)
    with read_checkpoints(path, options.workdir) as checkpoints:
        step = checkpoints.choose(options.step)
        meta = checkpoints.meta(step)
        state, data = checkpoints.contents(step, meta)
        steps = checkpoints.steps()
    arrays = {name: np.asarray(leaf) for name, leaf in leaves_by_path(state).items()}
    bad = [name for name, array in arrays.items() if not np.all(np.isfinite(array))]
    print(f"{path}: checkpoints of steps {', '.join(map(str, steps))}")
    print(f"step {step}: {len(arrays)} arrays, data and meta equal their checksums")
    print(f"not finite: {', '.join(bad)}" if bad else "all numbers are finite")
    print(f"saved with {_in_line(meta['versions'])}")
    numerics = _in_line(meta["numerics"]).replace("device_kind", "device")
    print(f"computed on (devices as process.number): {numerics}")
    print(f"data position: {json.dumps(data['streams'])}")
    width = max(len(name) for name in arrays)
    for name, array in arrays.items():
        kind = f"{array.dtype} {' x '.join(map(str, array.shape)) or 'scalar'}"
        print(f"{name:{width}}  {kind:24} {array.nbytes / MEGABYTE:10.3f} MB")
    total = sum(array.nbytes for array in arrays.values())
    print(f"{'in all':{width}}  {'':24} {total / MEGABYTE:10.3f} MB")


def _in_line(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in ("", None))
