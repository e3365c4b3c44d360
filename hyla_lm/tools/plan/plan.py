"""A plan: what a config needs and costs on a slice, as one JSON-ready object."""

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hyla_lm.config.experiment import Experiment
from hyla_lm.model.config import Features, Tokens
from hyla_lm.model.flops import (
    count_applied_parameters,
    count_parameters,
    train_flops_per_token,
)
from hyla_lm.parallel.mesh import batch_ways
from hyla_lm.run.program import Program as TrainProgram
from hyla_lm.run.program import checked_mesh, lay_out
from hyla_lm.run.summary import training_kernels
from hyla_lm.tasks.protocol import Objective
from hyla_lm.tools.cycles.cycles import Operation, by_part, operations, spread
from hyla_lm.tools.cycles.dumps import Dumps
from hyla_lm.tools.plan import cache
from hyla_lm.tools.plan.advice import advice
from hyla_lm.tools.plan.calibration import ERROR as CORRECTED_ERROR
from hyla_lm.tools.plan.calibration import (
    Calibration,
    check_program,
    check_versions,
    corrected_range,
    described,
)
from hyla_lm.tools.plan.collectives import Collective, find_collectives
from hyla_lm.tools.plan.compile import (
    CompiledStep,
    OutOfMemory,
    compile_step,
    planned_objective,
    with_batch,
)
from hyla_lm.tools.plan.hlo import Program
from hyla_lm.tools.plan.largest_batch import search
from hyla_lm.tools.plan.links import assumptions, links_of, places_of
from hyla_lm.tools.plan.notes import Notes
from hyla_lm.tools.plan.predict import ERROR, METHOD, consequences, step_time
from hyla_lm.tools.plan.purpose import purpose
from hyla_lm.tools.plan.topology import Slice


@dataclass(frozen=True)
class Options:
    """Options of a plan beside the config."""

    topology: Slice
    compiles: int = 6
    price_per_chip_hour: float | None = None
    cache_dir: str | None = None
    calibration: Calibration | None = None


def make_plan(
    experiment: Experiment,
    options: Options,
    devices: list[Any],
    dumps: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The plan of an experiment; if the step is too large, `fits` is False, with advice."""
    versions = {name: version(name) for name in ("hyla_lm", "jax", "jaxlib", "libtpu")}
    head = {
        "topology": options.topology.name,
        "slices": options.topology.count,
        "chips": options.topology.chips,
        "versions": versions,
        "config": experiment.text,
        "batch_size": experiment.train.batch_size,
    }
    if options.calibration is not None:
        _check_calibration(options.calibration, versions, experiment, devices)
    say(f"compiling the train step for {options.topology.name} (a minute or more)")
    try:
        with cache.kept(options.cache_dir) as entry:
            step = compile_step(experiment, devices)
    except OutOfMemory as refusal:
        return head | _refused(experiment, options, refusal)
    say(f"compiled in {step.compile_seconds:.0f} s; counting")
    plan = head | _measured(step, options, dumps)
    if options.calibration is not None:
        plan |= corrected(plan, options.calibration, options.price_per_chip_hour)
    _empty(dumps)
    plan["largest_batch"] = _largest_batch(experiment, step, options, devices, dumps, say)
    if options.cache_dir is not None:
        plan["cache"] = {"folder": options.cache_dir, **asdict(entry), "caveat": cache.CAVEAT}
    return plan


def _measured(step: CompiledStep, options: Options, dumps: Path) -> dict[str, Any]:
    program, train = step.program, step.program.experiment.train
    chips, chip = options.topology.chips, options.topology.chip
    hlo = Program(step.hlo)
    mesh = program.mesh
    collectives = find_collectives(hlo, dict(mesh.shape), places_of(mesh.devices.flat))
    found = operations(hlo, Dumps(dumps), chip)
    parts = by_part(found)
    io, model = program.task.io, program.experiment.model
    flops_per_token = train_flops_per_token(model, io, program.task.sequence_length)
    tokens = program.tokens_per_step
    times = step_time(
        parts, collectives, step.memory, flops_per_token * tokens / chips, options.topology
    )
    run = (tokens, flops_per_token, train.steps, chips, chip, options.price_per_chip_hour)
    measured_spread = spread(found)
    return {
        "fits": True,
        **_layout(program),
        "memory": asdict(step.memory) | {"hbm": chip.hbm_bytes},
        "flops_per_token": flops_per_token,
        "tokens_a_step": tokens,
        "steps": train.steps,
        "collectives": _described(collectives, options.topology, io),
        "cycles": [asdict(part) for part in parts],
        "spread": None if measured_spread is None else asdict(measured_spread),
        "step_seconds": asdict(times),
        "predicted": {
            "shortest": consequences(times.shortest, *run),
            "longest": consequences(times.longest, *run),
        },
        "method": METHOD,
        "error": ERROR,
        "assumptions": assumptions(options.topology),
        "notes": [*hlo.notes, *uncounted(found)],
        "compile_seconds": step.compile_seconds,
        "lower_seconds": step.lower_seconds,
    }


def _described(
    collectives: list[Collective], topology: Slice, io: Tokens | Features
) -> list[dict[str, Any]]:
    links, rows = links_of(topology), io.vocab_size if isinstance(io, Tokens) else None
    return [
        asdict(x)
        | {
            "purpose": purpose(x, rows),
            "bytes_sent": x.bytes_sent(),
            "seconds": links.seconds(x),
            "latency_seconds": links.latency(x),
        }
        for x in collectives
    ]


def _check_calibration(
    calibration: Calibration,
    versions: dict[str, str],
    experiment: Experiment,
    devices: list[Any],
) -> None:
    check_versions(calibration, versions)
    mesh = checked_mesh(experiment, devices)
    program = lay_out(experiment, planned_objective(experiment), mesh)
    check_program(calibration, experiment.model.dtype, attention_of(program))


def attention_of(program: TrainProgram[Objective]) -> list[str]:
    """The variants of a program, each with the kernel that trains it."""
    pattern = program.experiment.model.pattern
    kernels = training_kernels(program)
    return sorted({f"{pattern[n % len(pattern)]} by {kernel}" for n, kernel in enumerate(kernels)})


def corrected(
    plan: dict[str, Any], calibration: Calibration, price_per_chip_hour: float | None
) -> dict[str, Any]:
    """What a calibration changes in a plan: the prediction, its error, and what corrected it."""
    tokens, flops_per_token, steps = (
        plan[name] for name in ("tokens_a_step", "flops_per_token", "steps")
    )
    chip = Slice(plan["topology"]).chip
    run = (tokens, flops_per_token, steps, plan["chips"], chip, price_per_chip_hour)
    shortest, longest = corrected_range(plan, calibration)
    return {
        "predicted": {
            "shortest": consequences(shortest, *run),
            "longest": consequences(longest, *run),
        },
        "error": CORRECTED_ERROR,
        "calibration": described(plan, calibration),
    }


def _layout(program: TrainProgram[Objective]) -> dict[str, Any]:
    params, e = program.abstract_state.params, program.experiment
    return {
        "mesh": dict(program.mesh.shape),
        "parameters": count_parameters(params),
        "parameters_as_applied": count_applied_parameters(params, e.model, program.task.io),
        "attention": list(e.model.pattern),
        "kernels": training_kernels(program),
    }


def uncounted(found: list[Operation]) -> Notes:
    """Notes on operations with neither an estimate nor countable bundles, if they may matter."""
    notes = Notes()
    for x in found:
        if x.is_kernel and x.bundles is None:
            notes.add("kernels that are not counted, since their loops depend on data", x.name)
        if not x.is_kernel and x.estimate is None and x.bundles is None and "fusion" in x.name:
            notes.add("fusions without estimate or count, taken as their traffic", x.name)
    return notes


def _largest_batch(
    experiment: Experiment,
    step: CompiledStep,
    options: Options,
    devices: list[Any],
    dumps: Path,
    say: Callable[[str], None],
) -> dict[str, Any] | None:
    if options.compiles == 0:
        return None

    def needed_bytes(rows: int) -> float:
        try:
            return compile_step(with_batch(experiment, rows), devices).memory.total
        except OutOfMemory as refusal:
            return refusal.needed_bytes
        finally:
            _empty(dumps)

    memory = step.memory
    known = {0: float(memory.parameters + memory.optimizer)}
    known[experiment.train.batch_size] = float(memory.total)
    unit = batch_ways(step.program.mesh) * experiment.train.accumulate_steps
    found = search(
        needed_bytes, unit, known, options.topology.chip.hbm_bytes, options.compiles, say
    )
    return asdict(found) | {"step_rows": unit}


def _refused(experiment: Experiment, options: Options, refusal: OutOfMemory) -> dict[str, Any]:
    """The part of a plan for a step that does not fit: why, and what to change."""
    return {
        "fits": False,
        "needed_bytes": refusal.needed_bytes,
        "available_bytes": refusal.available_bytes,
        "change": advice(experiment, options.topology, refusal),
    }


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
