"""A plan: what a config needs and costs on a slice, as one JSON-ready object."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.model.config import Tokens
from hyla_lm.model.flops import (
    attention_flops_per_token,
    count_parameters,
    train_flops_per_token,
)
from hyla_lm.parallel.sharding import batch_ways
from hyla_lm.run.summary import training_kernels
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.kernels import kernel_cycles
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import find_collectives
from hyla_lm.tools.plan.compile import CompiledStep, Memory, OutOfMemory, compile_step, search
from hyla_lm.tools.plan.measured import basis, factors


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
    """What a compiled step holds and moves, its roofline, and the range of its time."""
    program = step.program
    task, train, model = program.task, program.experiment.train, program.experiment.model
    hlo = Program(step.hlo)
    collectives = find_collectives(hlo, dict(program.mesh.shape), topology.count)
    tokens = program.tokens_per_step
    flops = tokens * train_flops_per_token(model, task.io, task.sequence_length)
    of_kernels = tokens * attention_flops_per_token(model, task.sequence_length)
    bounds = roofline(
        flops,
        of_kernels,
        kernel_cycles(hlo, Dumps(dumps)),
        step.memory,
        sum(x.seconds(topology) for x in collectives),
        topology,
    )
    table_rows = task.io.vocab_size if isinstance(task.io, Tokens) else None
    return {
        "fits": True,
        "mesh": dict(program.mesh.shape),
        "parameters": count_parameters(program.abstract_state.params),
        "kernels": training_kernels(program),
        "memory": asdict(step.memory) | {"hbm": topology.chip.hbm_bytes},
        "tokens_per_step": tokens,
        "flops_per_step": flops,
        "steps": train.steps,
        "collectives": [
            asdict(x) | {"purpose": x.purpose(table_rows), "seconds": x.seconds(topology)}
            for x in collectives
        ],
        "roofline": bounds,
        "predicted": predict(bounds, tokens, flops, train.steps, topology),
        "basis": basis(),
        "notes": hlo.notes,
    }


def roofline(
    flops: float,
    kernel_flops: float,
    cycles: int,
    memory: Memory,
    link_seconds: float,
    topology: Slice,
) -> dict[str, float]:
    """Seconds that a step takes at least: to compute, to move its state, and to move collectives.

    FLOPs are of all chips, and run at the peak; kernels take at least their counted `cycles`.
    """
    chip = topology.chip
    peak = topology.chips * chip.peak_flops
    state_bytes = 2 * (memory.parameters + memory.optimizer) + memory.batch
    kernels = max(kernel_flops / peak, cycles / chip.clock_hz)
    return {
        "compute": (flops - kernel_flops) / peak + kernels,
        "state": state_bytes / chip.hbm_bytes_per_second,
        "links": link_seconds,
    }


def predict(
    bounds: Mapping[str, float], tokens: int, flops: float, steps: int, topology: Slice
) -> dict[str, dict[str, float]]:
    """The shortest and the longest step: the roofline times the factors of measured steps."""
    ends = [factor * max(bounds.values()) for factor in factors()]
    peak = topology.chips * topology.chip.peak_flops
    predicted = [
        {
            "step_seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "mfu": flops / seconds / peak,
            "chip_hours": seconds * steps / 3600 * topology.chips,
        }
        for seconds in ends
    ]
    return dict(zip(("shortest", "longest"), predicted, strict=True))
