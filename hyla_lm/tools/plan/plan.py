"""A plan: what a config needs and costs on a slice, as one JSON-ready object."""

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.model.config import Tokens
from hyla_lm.model.flops import (
    count_applied_parameters,
    count_parameters,
    train_flops_per_token,
)
from hyla_lm.parallel.sharding import batch_ways
from hyla_lm.run.summary import training_kernels
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.operations import PartCycles, by_part, operations
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import Collective, find_collectives
from hyla_lm.tools.plan.compile import (
    CompiledStep,
    Memory,
    OutOfMemory,
    compile_step,
    search,
)

ERROR = (
    "no figure has been compared with a chip. XLA's estimate of one operation can be off "
    "severalfold either way; host, input and the latency of collectives are left out."
)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step; `bound` is a lower bound for any program."""

    estimated_compute: float
    counted_compute: float
    collectives: float
    bound: float

    @property
    def shortest(self) -> float:
        compute = min(self.estimated_compute, self.counted_compute)
        return max(compute, self.collectives, self.bound)

    @property
    def longest(self) -> float:
        compute = max(self.estimated_compute, self.counted_compute)
        return max(compute + self.collectives, self.bound)


def make_plan(
    experiment: Experiment,
    topology: Slice,
    compiles: int,
    devices: list[Any],
    dumps: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The plan of an experiment; if the step is too large, `fits` is False, with what to change.

    `compiles` is the most to find the largest batch, `devices` are those of the slices; libtpu
    writes what it compiles to `dumps`.
    """
    head = {
        "topology": topology.name,
        "slices": topology.count,
        "chips": topology.chips,
        "versions": {name: version(name) for name in ("hyla_lm", "jax", "jaxlib", "libtpu")},
        "config": experiment.text,
        "batch_size": experiment.train.batch_size,
    }
    say(f"compiling the train step for {topology.name} (a minute or more)")
    try:
        step = compile_step(experiment, devices)
    except OutOfMemory as refusal:
        return head | {
            "fits": False,
            "needed_bytes": refusal.needed_bytes,
            "available_bytes": refusal.available_bytes,
            "change": advice(experiment, refusal),
        }
    say("counting")
    plan = head | describe(step, topology, dumps)
    _empty(dumps)
    plan["largest_batch"] = None
    if compiles:
        plan["largest_batch"] = _largest_batch(
            experiment, step, topology, compiles, devices, dumps, say
        )
    return plan


def describe(step: CompiledStep, topology: Slice, dumps: Path) -> dict[str, Any]:
    """What a compiled step holds, moves and computes, and the range of its time."""
    program = step.program
    task, model = program.task, program.experiment.model
    params, hlo = program.abstract_state.params, Program(step.hlo)
    collectives = find_collectives(hlo, dict(program.mesh.shape), topology.count)
    parts = by_part(operations(hlo, Dumps(dumps), topology.chip))
    flops_per_token = train_flops_per_token(model, task.io, task.sequence_length)
    flops_per_chip = flops_per_token * program.tokens_per_step / topology.chips
    times = step_time(parts, collectives, step.memory, flops_per_chip, topology)
    table_rows = task.io.vocab_size if isinstance(task.io, Tokens) else None
    plan = {
        "fits": True,
        "mesh": dict(program.mesh.shape),
        "parameters": count_parameters(params),
        "parameters_as_applied": count_applied_parameters(params, model, task.io),
        "kernels": training_kernels(program),
        "memory": asdict(step.memory) | {"hbm": topology.chip.hbm_bytes},
        "flops_per_token": flops_per_token,
        "tokens_per_step": program.tokens_per_step,
        "steps": program.experiment.train.steps,
        "collectives": [
            asdict(x)
            | {
                "purpose": x.purpose(table_rows),
                "bytes_sent": x.bytes_sent(),
                "seconds": x.seconds(topology),
            }
            for x in collectives
        ],
        "cycles": [asdict(part) for part in parts],
        "step_seconds": asdict(times),
        "error": ERROR,
        "notes": hlo.notes,
    }
    plan["predicted"] = {
        "shortest": consequences(times.shortest, plan, topology),
        "longest": consequences(times.longest, plan, topology),
    }
    return plan


def step_time(
    parts: Sequence[PartCycles],
    collectives: Sequence[Collective],
    memory: Memory,
    flops_per_chip: float,
    topology: Slice,
) -> StepTime:
    """The time of a step by both methods, with the time of the links and the lower bound."""
    chip = topology.chip
    state_bytes = 2 * (memory.parameters + memory.optimizer) + memory.batch
    return StepTime(
        sum(part.estimated for part in parts) / chip.clock_hz,
        sum(part.counted for part in parts) / chip.clock_hz,
        sum(x.seconds(topology) for x in collectives),
        max(flops_per_chip / chip.peak_flops, state_bytes / chip.hbm_bytes_per_second),
    )


def consequences(seconds: float, plan: dict[str, Any], topology: Slice) -> dict[str, float]:
    """Speed, share of the peak, and time of the run at this time of a step."""
    tokens_per_second = plan["tokens_per_step"] / seconds
    run_hours = seconds * plan["steps"] / 3600
    peak = topology.chips * topology.chip.peak_flops
    return {
        "step_seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "tokens_per_second_per_chip": tokens_per_second / topology.chips,
        "mfu": tokens_per_second * plan["flops_per_token"] / peak,
        "run_hours": run_hours,
        "chip_hours": run_hours * topology.chips,
    }


def advice(experiment: Experiment, refusal: OutOfMemory) -> list[str]:
    """What lowers the bytes per chip of a step that does not fit, cheapest first."""
    train, mesh = experiment.train, refusal.mesh
    excess, ways = refusal.needed_bytes / refusal.available_bytes, batch_ways(mesh)
    changes = []
    if experiment.model.attention_implementation not in ("auto", "pallas_tpu"):
        changes.append("ModelConfig.attention_implementation = 'auto', which keeps no T x T array")
    micro_batches = train.accumulate_steps * 2 ** math.ceil(math.log2(excess))
    if train.batch_size % (micro_batches * ways) == 0:
        changes.append(f"TrainConfig.accumulate_steps = {micro_batches} for the same batch")
    if rows := int(train.batch_size / excess) // ways * ways:
        changes.append(f"TrainConfig.batch_size = {rows} or less")
    if not experiment.model.remat:
        changes.append("ModelConfig.remat = True, which computes blocks again when backward")
    if mesh.shape["data"] > 1:
        fsdp = mesh.shape["data"] * mesh.shape["fsdp"]
        changes.append(f"MeshConfig.data = 1 and MeshConfig.fsdp = {fsdp}, which divides the state")
    return [*changes, "--topology: a larger slice"]


def _largest_batch(
    experiment: Experiment,
    step: CompiledStep,
    topology: Slice,
    compiles: int,
    devices: list[Any],
    dumps: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Rows that fit and rows that do not, both compiled."""

    def needed_bytes(rows: int) -> float:
        train = replace(experiment.train, batch_size=rows)
        try:
            return compile_step(replace(experiment, train=train), devices).memory.total
        except OutOfMemory as refusal:
            return refusal.needed_bytes
        finally:
            _empty(dumps)

    memory = step.memory
    measured = {0: float(memory.parameters + memory.optimizer)}
    measured[experiment.train.batch_size] = float(memory.total)
    unit = batch_ways(step.program.mesh) * experiment.train.accumulate_steps
    largest = search(needed_bytes, unit, measured, topology.chip.hbm_bytes, compiles, say)
    return asdict(largest) | {"step_rows": unit}


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
