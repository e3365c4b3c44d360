"""Trains 20 steps of one attention on several meshes of 8 devices; prints what was found as JSON.

Usage: mesh_runs GIN_FILE ATTENTION MESHES, with JAX_NUM_CPU_DEVICES=8; MESHES are lists of sizes
in JSON. The first mesh draws the state of all.
"""

import json
import math
import sys
from dataclasses import replace
from typing import Any

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.model.flops import count_parameters
from hyla_lm.parallel.mesh import AXES, MeshConfig
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import make_program
from hyla_lm.tools.cycles.hlo import Program as Hlo
from hyla_lm.tools.plan.collectives import KINDS, find_collectives

STEPS = 20


def run(
    experiment: Experiment, sizes: tuple[int, ...], given: Any
) -> tuple[dict[str, object], Any]:
    """What was found, and the first state, for the other meshes."""
    mesh_config = MeshConfig(**dict(zip(AXES, sizes, strict=True)))
    devices = jax.devices()[: math.prod(sizes)]
    program = make_program(replace(experiment, mesh=mesh_config), devices)
    train = experiment.train
    stream = program.task.train_stream(BatchShard(train.batch_size, train.seed), None)
    losses = []
    with jax.set_mesh(program.mesh):
        if given is None:
            state = program.init()
        else:
            layout = jax.tree.map(lambda x: x.sharding, program.abstract_state)
            state = jax.device_put(given, layout)
        first = jax.device_get(state)
        batch = program.to_devices(next(stream))
        compiled = program.train_step.lower(state, batch).compile()  # type: ignore[attr-defined]
        collectives = find_collectives(Hlo(compiled.as_text()), dict(program.mesh.shape))
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
        for _ in range(STEPS):
            state, output = compiled(state, batch)
            batch = program.to_devices(next(stream))
            total, count = output.objective
            losses.append(float(total) / float(count))
    found = {
        "losses": losses,
        "bytes": held,
        "parameters": count_parameters(program.abstract_state.params),
        "sums": {
            kind: sum(x.bytes * x.times for x in collectives if x.kind == kind) for kind in KINDS
        },
    }
    return found, first


def main() -> None:
    gin_file, attention, meshes = sys.argv[1:]
    experiment = read_experiment([gin_file], [f'ModelConfig.attention = "{attention}"'])
    every = [tuple(sizes) for sizes in json.loads(meshes)]
    results, first = {}, None
    for sizes in every:
        results[str(sizes)], first = run(experiment, sizes, first)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
