"""Trains 6 steps with Muon on one device and on 2 x 2; prints losses and bytes a device as JSON.

Run with JAX_NUM_CPU_DEVICES=4.
"""

import json

import jax

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.program import make_program

STEPS = 6
BINDINGS = [
    *("TrainConfig.steps = 20", "TrainConfig.batch_size = 8", "SEED = 0"),
    *("ModelConfig.num_layers = 1", "ModelConfig.model_dim = 16", "ModelConfig.mlp_dim = 32"),
    *("ModelConfig.num_heads = 2", "ModelConfig.head_dim = 8", "ModelConfig.attention = 'softmax'"),
    *("OptimizerConfig.warmup_steps = 2", "OptimizerConfig.learning_rate = 1e-2"),
    "OptimizerConfig.optimizer = 'muon'",
]


def run(data: int, fsdp: int) -> dict[str, object]:
    mesh = [f"MeshConfig.data = {data}", f"MeshConfig.fsdp = {fsdp}"]
    experiment = read_experiment(["gin/evals/fuzzy_logic_strict.gin"], [*BINDINGS, *mesh])
    program = make_program(experiment, jax.devices()[: data * fsdp])
    stream = program.task.train_stream(BatchShard(experiment.train.batch_size, 0), None)
    losses = []
    with jax.set_mesh(program.mesh):
        state = program.init()
        held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))
        for _ in range(STEPS):
            state, output = program.train_step(state, program.to_devices(next(stream)))
            losses.append(float(output.objective[0] / output.objective[1]))
    return {"losses": losses, "bytes": held}


if __name__ == "__main__":
    print(json.dumps([run(1, 1), run(2, 2)]))
