"""Compiles for TPU v5e on a machine without one; prints what the programs hold as JSON.

Usage: tpu_runs.py TOPOLOGY PROGRAM LENGTH ATTENTION IMPLEMENTATION [BINDING...], PROGRAM being
`kernel` (one layer's attention and its gradient on one chip) or `train_step` (that of
gin/c4_50m_hyla.gin on all chips). TOPOLOGY may be of several slices, as in 2@v5e:2x2. A script,
since libtpu reads its settings when it is loaded.
Needs the extra `[tpu]`.
"""

import json
import os
import re
import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

os.environ |= {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hyla_lm import config
from hyla_lm.attention import VARIANTS, attend
from hyla_lm.experiment import from_gin
from hyla_lm.input.source import LanguageData
from hyla_lm.language_model import LanguageModel, LanguageModelTask
from hyla_lm.mesh import batch_sharding
from hyla_lm.setup import make_program

HEADS, HEAD_DIM = 8, 64
KERNELS = "hyla_forward|hyla_backward|splash_mha_fwd|splash_mha_dkv"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# What goes from slice to slice leaves a chip through its host, under the collective's name.
BETWEEN_SLICES = r' send\(.*?_xla_host_transfer_rendezvous="([a-z-]+)'


@dataclass(frozen=True)
class WithoutData:
    """A language-modelling task that is only ever compiled."""

    length: int

    def prepare_task(self, batch_size: int) -> LanguageModelTask:
        tokenizer: Any = SimpleNamespace(vocab_size=32000, bos=1)
        no_rows: Any = None
        config = LanguageModel(sequence_length=self.length)
        return LanguageModelTask(config, LanguageData(tokenizer, no_rows, no_rows))


def compile_kernel(devices: list[Any], length: int, attention: str, implementation: str) -> Any:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=devices[:1])
    one_chip = NamedSharding(mesh, PartitionSpec())
    shape = (1, length, HEADS, HEAD_DIM)
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=one_chip)

    def output_and_gradients(*qkv: jax.Array) -> Any:
        y, pull_back = jax.vjp(
            lambda q, k, v: attend(
                q, k, v, VARIANTS[attention], causal=True, implementation=implementation
            ),
            *qkv,
        )
        return y, pull_back(y)

    with jax.set_mesh(mesh):
        return jax.jit(output_and_gradients).lower(x, x, x).compile()


def compile_train_step(
    devices: list[Any], length: int, attention: str, implementation: str, bindings: list[str]
) -> Any:
    own = [
        "LanguageModel.data = None",
        f'ModelConfig.attention = "{attention}"',
        f'ModelConfig.attention_implementation = "{implementation}"',
    ]
    config.load(["gin/c4_50m_hyla.gin"], own + bindings)
    experiment = from_gin()
    train = replace(experiment.train, task=WithoutData(length))
    program = make_program(replace(experiment, train=train), devices)
    sharding = batch_sharding(program.mesh)
    rows = train.batch_size
    batch = {
        "tokens": jax.ShapeDtypeStruct((rows, length + 1), jnp.int32, sharding=sharding),
        "text_bytes": jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding),
        "row": jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=sharding),
    }
    with jax.set_mesh(program.mesh):
        return program.train_step.lower(program.abstract_state, batch).compile()


def findings(compiled: Any, length: int) -> dict[str, object]:
    text = compiled.as_text()
    memory = compiled.memory_analysis()
    shapes = {
        tuple(int(size) for size in found.split(","))
        for found in re.findall(r"\b(?:bf16|f32)\[([\d,]+)\]", text)
    }
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {
        "temporary_bytes": memory.temp_size_in_bytes,
        "square_arrays": sorted(shape for shape in shapes if shape.count(length) >= 2),
        "collectives": {name: count for name, count in counts.items() if count},
        "between_slices": sorted(set(re.findall(BETWEEN_SLICES, text))),
        "kernels": sorted(set(re.findall(rf"%\w*?({KERNELS})\w*(?:\.\d+)? = ", text))),
    }


def main() -> None:
    topology, program, number, attention, implementation, *bindings = sys.argv[1:]
    length = int(number)
    slices, _, name = topology.rpartition("@")
    described = topologies.get_topology_desc(
        platform="tpu", topology_name=name, num_slices=int(slices or 1)
    )
    devices = list(described.devices)
    try:
        if program == "kernel":
            compiled = compile_kernel(devices, length, attention, implementation)
        else:
            compiled = compile_train_step(devices, length, attention, implementation, bindings)
    except jax.errors.JaxRuntimeError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps(findings(compiled, length)))


if __name__ == "__main__":
    main()
