"""Compiles the step of a config for chips that are not here, and searches the largest batch."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from hyla_lm.config.experiment import Experiment
from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import memory_of
from hyla_lm.parallel.sharding import bytes_on_device
from hyla_lm.run.program import Program, abstract_batch, checked_mesh, lay_out, lower_step
from hyla_lm.tasks.protocol import Objective

_NEEDED = re.compile(
    r"Ran out of memory.*?\(([\d.]+)([KMG]?)\) exceeds available HBM \(([\d.]+)([KMG]?)\)", re.S
)
_USED = re.compile(r"Used ([\d.]+)([KMG]?) of ([\d.]+)([KMG]?) hbm")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
MAX_GROWTH = 64  # from one compile to the next
TOLERANCE = 0.02  # the search ends when both numbers of rows are this near


class OutOfMemory(Exception):
    """The compiler's refusal: bytes per chip, needed and there."""

    def __init__(self, needed_bytes: float, available_bytes: float):
        self.needed_bytes, self.available_bytes = needed_bytes, available_bytes


@dataclass(frozen=True)
class Memory:
    """Bytes per chip: parameters, other state, the batch, and temporaries of the step."""

    parameters: int
    optimizer: int
    batch: int
    temporary: int
    total: int


@dataclass(frozen=True)
class CompiledStep:
    """A compiled step, with its memory."""

    program: Program[Objective]
    hlo: str
    memory: Memory


def compile_step(experiment: Experiment, devices: list[Any]) -> CompiledStep:
    """Lowers and compiles the step; raises OutOfMemory if it does not fit."""
    assert experiment.train.task is not None
    objective = experiment.train.task.planned_objective()
    program = lay_out(experiment, objective, checked_mesh(experiment, devices))
    needed, available = bytes_on_device(program.abstract_state), memory_of(devices[0])
    if needed > available:
        raise OutOfMemory(needed, available)
    with jax.set_mesh(program.mesh):
        lowered = lower_step(program)
        try:
            compiled: Any = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            refusal = parse_refusal(str(error))
            if refusal is None:
                reason = str(error).strip().splitlines()[0]
                raise UserError(f"the TPU compiler cannot make this step: {reason}") from error
            raise OutOfMemory(*refusal) from None
    memory = _memory(program, compiled.memory_analysis())
    return CompiledStep(program, compiled.as_text(), memory)


def parse_refusal(message: str) -> tuple[float, float] | None:
    """Bytes needed and available, from XLA's message; None for another message."""
    for pattern in (_USED, _NEEDED):
        if match := pattern.search(message):
            needed, available = (float(match[i]) * _UNITS[match[i + 1]] for i in (1, 3))
            return needed, available
    return None


def _memory(program: Program[Objective], analysis: Any) -> Memory:
    state = program.abstract_state
    arguments = analysis.argument_size_in_bytes
    total = arguments + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    parameters, optimizer = bytes_on_device(state.params), bytes_on_device(state.opt_state)
    return Memory(
        parameters,
        optimizer,
        bytes_on_device(abstract_batch(program)),
        analysis.temp_size_in_bytes,
        total + analysis.temp_size_in_bytes + analysis.generated_code_size_in_bytes,
    )


@dataclass(frozen=True)
class LargestBatch:
    """Rows that fit (0: none), rows that do not (None where compiles ran out), and the compiles."""

    rows: int
    too_many: int | None
    compiles: int


def search(
    needed_bytes: Callable[[int], float],
    step: int,
    measured: dict[int, float],
    available_bytes: float,
    compiles: int,
) -> LargestBatch:
    """Tries multiples of `step` rows, at most `compiles` of them.

    `needed_bytes(rows)` compiles and returns bytes per chip, even if they are too many; `measured`
    has the bytes of some numbers of rows, with those of the state for 0 rows.
    """
    sizes = {rows // step: size for rows, size in measured.items()}
    tried = 0
    while tried < compiles:
        candidate = _next(sizes, available_bytes)
        if candidate is None:
            break
        tried += 1
        sizes[candidate] = needed_bytes(candidate * step)
        verdict = "fit" if sizes[candidate] <= available_bytes else "do not fit"
        said = f"largest batch, compile {tried} of at most {compiles}: {candidate * step:,} rows"
        print(said, verdict, file=sys.stderr, flush=True)
    low, high = _bracket(sizes, available_bytes)
    near = high is not None and high - low <= max(1, TOLERANCE * low)
    too_many = max(high, 1) * step if near and high is not None else None
    return LargestBatch(low * step, too_many, tried)


def _bracket(sizes: dict[int, float], available: float) -> tuple[int, int | None]:
    low = max((units for units, size in sizes.items() if size <= available), default=0)
    high = min((units for units, size in sizes.items() if size > available), default=None)
    return low, high


def _next(sizes: dict[int, float], available: float) -> int | None:
    """Rows at which the line through the two nearest sizes meets the limit, else the middle."""
    low, high = _bracket(sizes, available)
    if high is not None and high - low <= max(1, TOLERANCE * low):
        return None
    nearest = sorted(sizes, key=lambda units: abs(sizes[units] - available))[:2]
    first, last = min(nearest), max(nearest)
    slope = (sizes[last] - sizes[first]) / (last - first) if last > first else 0.0
    guess = math.floor(first + (available - sizes[first]) / slope) if slope > 0 else 2 * last
    margin = max(1, math.floor(TOLERANCE * low))
    guess = min(max(guess, low + margin), max(low, 1) * MAX_GROWTH)
    return guess if high is None or guess < high else (low + high) // 2
