"""Skips one update on one device and on a mesh of 8; prints JSON.

Usage: guarded_meshes GIN_FILE, with JAX_NUM_CPU_DEVICES=8.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.parallel.mesh import AXES
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import make_program
from tests.faults.faulty import a_row_of_each, spoil_rows

MESHES = ((1, 1, 1, 1), (1, 2, 2, 2))
BINDINGS = ("UpdatePolicy.nonfinite = 'skip'", "UpdatePolicy.spike_factor = 1e6")


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(tree))]


def run(gin_file: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    mesh = [f"MeshConfig.{axis} = {size}" for axis, size in zip(AXES, sizes, strict=True)]
    experiment = read_experiment([gin_file], [*BINDINGS, *mesh])
    program = make_program(experiment, jax.devices()[: math.prod(sizes)])
    stream = program.task.train_stream(BatchShard(8), None)
    skipped, same, norms = [], [], []
    with jax.set_mesh(program.mesh):
        state = program.init()
        for _ in range(4):
            before = bits((state.params, state.opt_state.optimizer))
            state = program.train_step(state, program.to_devices(next(stream)))[0]
            same.append(before == bits((state.params, state.opt_state.optimizer)))
            skipped.append(int(state.opt_state.guard.skipped))
            norms.append(float(state.opt_state.guard.mean_norm))
    return {"skipped": skipped, "same": same, "norms": norms}


def main() -> None:
    gin_file = sys.argv[1]
    with pytest.MonkeyPatch.context() as patch:
        spoil_rows(patch, a_row_of_each(Path(gin_file), [3]), math.nan)
        print(json.dumps({str(sizes): run(gin_file, sizes) for sizes in MESHES}))


if __name__ == "__main__":
    main()
