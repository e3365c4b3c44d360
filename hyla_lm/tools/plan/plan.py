"""A plan: what a config needs and costs on a slice, as one JSON-ready object."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.model.config import Tokens
from hyla_lm.model.flops import count_parameters, train_flops_per_token
from hyla_lm.parallel.sharding import batch_ways
from hyla_lm.run.summary import training_kernels
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.operations import cycles_of
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import Collective, find_collectives
from hyla_lm.tools.plan.compile import CompiledStep, Memory, OutOfMemory, compile_step, search

ERROR = (
    "no figure has been compared with hardware. XLA's estimate of one operation can be off "
    "severalfold either way; host, input and the latency of collectives are left out."
)


def make_plan(
    experiment: Experiment, topology: Slice, compiles: int, dumps: Path
) -> dict[str, Any]:
    """The plan of an experiment; if the step is too large, `fits` is False.

    `compiles` is the most to find the largest batch; libtpu writes what it compiles to `dumps`.
    """
    devices = topology.devices()
    head = {
        "topology": topology.name,
        "slices": topology.count,
        "chips": topology.chips,
        "versions": {name: version(name) for name in ("hyla_lm", "jax", "jaxlib", "libtpu")},
        "config": experiment.text,
        "batch_size": experiment.train.batch_size,
    }
    print(f"compiling for {topology.name} (a minute or more)", file=sys.stderr, flush=True)
    try:
        step = compile_step(experiment, devices)
    except OutOfMemory as refusal:
        needed, available = refusal.needed_bytes, refusal.available_bytes
        return head | {"fits": False, "needed_bytes": needed, "available_bytes": available}
    plan = head | describe(step, topology, dumps)

    def needed_bytes(rows: int) -> float:
        train = replace(experiment.train, batch_size=rows)
        try:
            return compile_step(replace(experiment, train=train), devices).memory.total
        except OutOfMemory as refusal:
            return refusal.needed_bytes

    memory = step.memory
    measured = {0: float(memory.parameters + memory.optimizer)}
    measured[experiment.train.batch_size] = float(memory.total)
    unit = batch_ways(step.program.mesh) * experiment.train.accumulate_steps
    largest = search(needed_bytes, unit, measured, topology.chip.hbm_bytes, compiles)
    return plan | {"largest_batch": asdict(largest) if compiles else None}


def describe(step: CompiledStep, topology: Slice, dumps: Path) -> dict[str, Any]:
    """What a compiled step holds, moves and computes, and the range of its time."""
    program = step.program
    task, train = program.task, program.experiment.train
    hlo = Program(step.hlo)
    collectives = find_collectives(hlo, dict(program.mesh.shape), topology.count)
    flops = program.tokens_per_step * train_flops_per_token(
        program.experiment.model, task.io, task.sequence_length
    )
    cycles = cycles_of(hlo, Dumps(dumps), topology.chip)
    ends = step_seconds(cycles, collectives, step.memory, flops / topology.chips, topology)
    table_rows = task.io.vocab_size if isinstance(task.io, Tokens) else None
    peak = topology.chips * topology.chip.peak_flops
    predicted = [
        {
            "step_seconds": seconds,
            "tokens_per_second": program.tokens_per_step / seconds,
            "mfu": flops / seconds / peak,
            "chip_hours": seconds * train.steps / 3600 * topology.chips,
        }
        for seconds in ends
    ]
    return {
        "fits": True,
        "mesh": dict(program.mesh.shape),
        "parameters": count_parameters(program.abstract_state.params),
        "kernels": training_kernels(program),
        "memory": asdict(step.memory) | {"hbm": topology.chip.hbm_bytes},
        "tokens_per_step": program.tokens_per_step,
        "steps": train.steps,
        "collectives": [
            asdict(x) | {"purpose": x.purpose(table_rows), "seconds": x.seconds(topology)}
            for x in collectives
        ],
        "predicted": dict(zip(("shortest", "longest"), predicted, strict=True)),
        "error": ERROR,
        "notes": hlo.notes,
    }


def step_seconds(
    cycles: Sequence[int],
    collectives: Sequence[Collective],
    memory: Memory,
    flops_per_chip: float,
    topology: Slice,
) -> tuple[float, float]:
    """The shortest time of a step and the longest: collectives hidden behind cycles, or not.

    No program is faster than its FLOPs at the chip's peak, or than moving the state.
    """
    chip = topology.chip
    compute = [count / chip.clock_hz for count in cycles]
    links = sum(x.seconds(topology) for x in collectives)
    state_bytes = 2 * (memory.parameters + memory.optimizer) + memory.batch
    bound = max(flops_per_chip / chip.peak_flops, state_bytes / chip.hbm_bytes_per_second)
    return max(min(compute), links, bound), max(max(compute) + links, bound)
