"""Compiles for TPU v5e on a machine without one; prints what the programs hold as JSON.

Usage: tpu_runs.py TOPOLOGY PROGRAM LENGTH ATTENTION IMPLEMENTATION [BINDING...], PROGRAM being
`kernel` (one layer's attention and its gradient on one chip) or `train_step` (that of
gin/c4_50m_hyla.gin on all chips). TOPOLOGY may be of several slices, as in 2@v5e:2x2. A script,
since libtpu reads its settings when it is loaded.
Needs the extra `[tpu]`.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hyla_lm.attention.attend import VARIANTS, attend
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu
from hyla_lm.tools.plan.compile import CompiledStep, compile_step

HEADS, HEAD_DIM = 8, 64
KERNELS = "hyla_forward|hyla_backward|softmax_forward|softmax_backward"
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# What goes from slice to slice leaves a chip through its host, under the collective's name.
BETWEEN_SLICES = r' send\(.*?_xla_host_transfer_rendezvous="([a-z-]+)'


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
) -> CompiledStep:
    own = [
        f"LanguageModel.sequence_length = {length}",
        f'ModelConfig.attention = "{attention}"',
        f'ModelConfig.attention_implementation = "{implementation}"',
    ]
    experiment = read_experiment(["gin/c4_50m_hyla.gin"], own + bindings)
    return compile_step(experiment, devices)


def findings(text: str, temporary_bytes: int, length: int, dumps: Dumps) -> dict[str, object]:
    shapes = {
        tuple(int(size) for size in found.split(","))
        for found in re.findall(r"\b(?:bf16|f32)\[([\d,]+)\]", text)
    }
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {
        "temporary_bytes": temporary_bytes,
        "square_arrays": sorted(shape for shape in shapes if shape.count(length) >= 2),
        "collectives": {name: count for name, count in counts.items() if count},
        "between_slices": sorted(set(re.findall(BETWEEN_SLICES, text))),
        "kernels": sorted(set(re.findall(rf"%\w*?({KERNELS})\w*(?:\.\d+)? = ", text))),
        "cycles": {
            name: dumps.cycles(name)
            for name in re.findall(r'%([\w.\-]+) = .*custom_call_target="tpu_custom_call"', text)
        },
    }


def main() -> None:
    topology, program, number, attention, implementation, *bindings = sys.argv[1:]
    length = int(number)
    slices, _, name = topology.rpartition("@")
    with tempfile.TemporaryDirectory(prefix="tpu_runs_") as folder:
        set_up_libtpu(Path(folder))
        devices = Slice(name, int(slices or 1)).devices()
        if program == "kernel":
            kernel = compile_kernel(devices, length, attention, implementation)
            text, temporary = kernel.as_text(), kernel.memory_analysis().temp_size_in_bytes
        else:
            step = compile_train_step(devices, length, attention, implementation, bindings)
            text, temporary = step.hlo, step.memory.temporary
        print(json.dumps(findings(text, temporary, length, Dumps(Path(folder)))))


if __name__ == "__main__":
    main()
