"""Cost of attention on TPU v5e, counted without one: make bench-tpu [LENGTHS="512 1024"].

One sequence and layer, 8 heads of 64, bfloat16, causal. Pallas kernels are counted by running their
program (hyla_lm/tools/cycles/bundles.py); what XLA runs is the compiler's own estimate, another
measure. Both leave out waiting for memory; HBM is the time that operands and results need at
819 GB/s. Needs the extra `[tpu]`.
"""

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hyla_lm.attention.attend import attend
from hyla_lm.attention.chips import V5E
from hyla_lm.attention.spec import VARIANTS
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Program as Hlo
from hyla_lm.tools.cycles.topology import Slice, set_up_libtpu

FOLDER = tempfile.TemporaryDirectory(prefix="bench_tpu_")
DUMPS = Path(FOLDER.name)
HBM_BYTES_PER_CYCLE = V5E.hbm_bytes_per_second / V5E.clock_hz
LENGTHS = (512, 1024, 2048, 4096)
REFERENCE_MAX_LENGTH = 2048  # beyond, its pairs take minutes to compile and fill the chip
HEADS, HEAD_DIM = 8, 64
CASES = [("hyla", name) for name in ("pallas_tpu", "blocked", "reference")]
CASES += [("softmax", "reference"), ("linear", "pallas_tpu")]
CASES += [(name, "pallas_tpu") for name in ("hyla_gated", "talking_heads", "query_composed")]

_KERNEL = re.compile(r'%([\w.\-]+) = .*custom_call_target="tpu_custom_call"')
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
NO_ESTIMATE = 1 << 62  # the compiler writes a huge number instead of no estimate
_VMEM = re.compile(r'"used_scoped_memory_configs":\[\{"memory_space":"1"[^}]*"size":"(\d+)"')

Program = tuple[Callable[..., Any], tuple[jax.ShapeDtypeStruct, ...]]


def forward(length: int, attention: str, implementation: str) -> Program:
    """Attention of one layer, and its operands as shapes."""
    x = jax.ShapeDtypeStruct((1, length, HEADS, HEAD_DIM), jnp.bfloat16)
    spec = VARIANTS[attention]
    of_pairs = spec.pair_network.weights if spec.pair_network else {}
    weights = [
        jax.ShapeDtypeStruct((1, length) * weight.by_query + (HEADS,) * len(weight.axes), "f4")
        for weight in of_pairs.values()
    ]

    def attention_layer(q: jax.Array, k: jax.Array, v: jax.Array, *weights: jax.Array) -> jax.Array:
        return attend(
            *(q, k, v, spec),
            causal=True,
            weights=dict(zip(of_pairs, weights, strict=True)),
            implementation=implementation,
        )

    return attention_layer, (x, x, x, *weights)


def both(*case: Any) -> Program:
    """The output and the gradient of its sum with respect to its operands."""
    function, shapes = forward(*case)

    def output_and_gradients(*operands: jax.Array) -> Any:
        y, pull_back = jax.vjp(function, *operands)
        return y, pull_back(jnp.ones_like(y))

    return output_and_gradients, shapes


def compile_program(program: Program, device: Any) -> Any:
    function, operands = program
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=[device])
    one_chip = NamedSharding(mesh, PartitionSpec())
    placed = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=one_chip) for x in operands]
    with jax.set_mesh(mesh):
        return jax.jit(function).lower(*placed).compile()


def measure(program: Program, device: Any) -> str:
    for old in DUMPS.iterdir():
        old.unlink()
    compiled = compile_program(program, device)
    hlo = compiled.as_text()
    memory = compiled.memory_analysis()
    total = 0
    for instruction, _, times in Hlo(hlo).walk():
        estimate = _ESTIMATE.search(instruction.line)
        if estimate and int(estimate[1]) < NO_ESTIMATE:
            total += times * int(estimate[1])
    notes = []
    for line in filter(_KERNEL.search, hlo.splitlines()):
        name = _KERNEL.search(line)[1]  # type: ignore[index]
        cycles = Dumps(DUMPS).cycles(name)
        if cycles is None:
            raise ValueError(f"{name} cannot be counted.")
        total += cycles
        vmem = _VMEM.search(line)
        used = f"  VMEM {int(vmem[1]) / 2**20:.1f} MiB" if vmem else ""
        notes.append(f"{'':31}{name}: {cycles:,} cycles{used}")
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    head = f"{total:>12,} cycles  HBM {moved / HBM_BYTES_PER_CYCLE:>9,.0f}"
    head += f"  temporary {memory.temp_size_in_bytes / 2**20:>8.1f} MiB"
    return "\n".join([head, *notes])


def main() -> None:
    lengths = [int(argument) for argument in sys.argv[1:]] or LENGTHS
    set_up_libtpu(DUMPS)
    device = Slice("v5e:2x2").devices()[0]
    for length in lengths:
        for attention, implementation in CASES:
            if implementation == "reference" and length > REFERENCE_MAX_LENGTH:
                continue
            for make in (forward, both):
                program = make(length, attention, implementation)
                label = f"T={length} {attention} {implementation} {make.__name__}"
                print(f"{label:<42}{measure(program, device)}", flush=True)


if __name__ == "__main__":
    main()
