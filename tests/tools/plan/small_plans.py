"""Compiles a small config for four CPU devices; prints what the plan reads in it as JSON.

Run with JAX_NUM_CPU_DEVICES=4.
"""

import json

import jax

from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.plan.collectives import find_collectives
from hyla_lm.tools.plan.compile import compile_step

CONFIG = """
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 2000
LanguageModel.data = @Rows()
LogConfig.layers = False
LogConfig.details_every = 0
ModelConfig.attention_implementation = "reference"
TrainConfig.batch_size = 16
TrainConfig.accumulate_steps = 2
LanguageModel.sequence_length = 24
LanguageModel.vocab_size = 40
ModelConfig.num_layers = 3
ModelConfig.scan_layers = True
ModelConfig.model_dim = 16
ModelConfig.num_heads = 2
ModelConfig.head_dim = 8
ModelConfig.mlp_dim = 48
ModelConfig.attention = "softmax"
MeshConfig.replica = 2
"""


def found() -> dict[str, object]:
    step = compile_step(read_experiment([Written("small", CONFIG)], []), jax.devices())
    hlo, mesh = Program(step.hlo), dict(step.program.mesh.shape)
    loops = [times * hlo.trips(x, c) for x, c, times in hlo.walk() if x.opcode == "while"]
    collectives, rows = find_collectives(hlo, mesh), step.program.task.io.vocab_size
    return {
        "loops": loops,
        "notes": hlo.notes,
        "memory": [step.memory.parameters, step.memory.optimizer],
        "collectives": [[x.kind, x.axes, x.bytes * x.times, x.purpose(rows)] for x in collectives],
    }


if __name__ == "__main__":
    jax.config.update("jax_disable_most_optimizations", True)  # of machine code: the plan reads HLO
    print(json.dumps(found()))
