"""Cycles of a compiled step: the compiler's estimates beside counted bundles.

XLA estimates the cycles of its operations, but not of a Pallas kernel. libtpu writes the VLIW
program of both, whose bundles can be counted. Bundles leave out waiting for memory, so an operation
counts as the longer of its bundles and of moving its arrays from and to HBM.
"""

import math
import re
from collections.abc import Mapping

from hyla_lm.attention.chips import Chip
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Array, Instruction, Program, root_of

NO_ESTIMATE = 1 << 62  # the compiler writes a huge number instead of no estimate
_ESTIMATE = re.compile(r'"estimated_cycles":"(\d+)"')
_FREE = re.compile(
    r"(parameter|constant|tuple|get-tuple-element|bitcast|after-all|domain|opt-barrier|while|call|"
    r"conditional|partition-id|replica-id|send|recv|add-dependency|copy-done|slice-done|.*-done)"
)
_MOVES = ("copy-start", "slice-start")
_CONSTANT = re.compile(r"\w+\[[1,]*\][^ ]* constant\([{ ]*(-?\d+)[} ]*\)")
_COLLECTIVE = re.compile(
    r"async-collective|all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
)
SLICES = ("slice", "dynamic-slice", "gather")
UPDATE = "dynamic-update-slice"
_PARAMETER = re.compile(r" parameter\((\d+)\)")

Body = Mapping[str, Instruction]


def cycles_of(program: Program, dumps: Dumps, chip: Chip) -> tuple[int, int]:
    """Cycles of a step, estimated and counted, without collectives, whose time is of the links.

    Where one method knows nothing of an operation, it takes what the other says, or else the
    traffic with HBM. The program notes kernels and fusions whose cycles are not known.
    """
    estimated = counted = 0
    for instruction, computation, times in program.walk():
        if _FREE.fullmatch(instruction.opcode) or is_collective(instruction):
            continue
        is_kernel = 'custom_call_target="tpu_custom_call"' in instruction.line
        estimate = estimated_cycles(instruction)
        bundles: int | None = 0
        moved = 0
        if instruction.opcode not in _MOVES:
            scalars = _scalars(program, instruction, computation) if is_kernel else None
            bundles = dumps.cycles(instruction.name, scalars)
            moved = hbm_bytes(program, instruction, computation)
        if bundles is None and is_kernel:
            program.note("kernels are not counted whose loops depend on data")
        elif bundles is None and estimate is None and "fusion" in instruction.name:
            program.note("fusions without estimate or count are taken as their traffic")
        traffic = math.ceil(moved / chip.hbm_bytes_per_second * chip.clock_hz)
        count = None if bundles is None else max(bundles, traffic)
        known = count if estimate is None else estimate
        known = traffic if known is None else known
        estimated += times * known
        counted += times * (known if count is None else count)
    return estimated, counted


def estimated_cycles(instruction: Instruction) -> int | None:
    """The compiler's estimate of one run; None without one."""
    estimate = _ESTIMATE.search(instruction.line)
    return int(estimate[1]) if estimate and int(estimate[1]) < NO_ESTIMATE else None


def is_collective(instruction: Instruction) -> bool:
    """Whether it crosses chips, by its opcode or, for a fusion, by its name or what it calls."""
    called = instruction.called("calls") if instruction.opcode == "fusion" else ""
    return any(map(_COLLECTIVE.search, (instruction.opcode, called))) or (
        instruction.opcode == "fusion" and bool(_COLLECTIVE.search(instruction.name))
    )


def _scalars(program: Program, kernel: Instruction, computation: str) -> dict[int, int]:
    """The kernel's operands that are constant scalars, by index; they control its loops."""
    constants = program.computations[computation]
    scalars = {}
    for index, name in enumerate(kernel.operands):
        if name in constants and (value := _CONSTANT.search(constants[name].line)):
            scalars[index] = int(value[1])
    return scalars


def hbm_bytes(program: Program, instruction: Instruction, computation: str) -> int:
    """Bytes that an operation moves from and to HBM.

    Of an array that it slices it reads the slice, and of one that it updates in place it writes the
    update. A loop that stacks what its trips make does both: else whole arrays count in each trip.
    """
    fused = program.inside(instruction)
    read = 0
    for index, operand in enumerate(program.operands(instruction, computation)):
        size = sum(array.num_bytes for array in operand.arrays if not array.on_chip)
        if fused:
            read += min(size, _read(program, fused, _parameter(fused, index), size))
        else:
            read += min(size, _read_by(program, {}, instruction, operand.name, size))
    if fused:
        parts = _written(program, fused, instruction)
    else:
        parts = [array.num_bytes for array in instruction.arrays]
        updates = program.operands(instruction, computation)[1:2]
        if instruction.opcode == UPDATE and updates:
            parts = [_bytes(updates[0].arrays)]
    pairs = zip(parts, instruction.arrays, strict=True)
    return read + sum(part for part, array in pairs if not array.on_chip)


def _parameter(body: Body, index: int) -> str:
    """The name of a parameter of a fused computation; empty if it has none of this index."""
    for x in body.values():
        number = _PARAMETER.search(x.line)
        if number and int(number[1]) == index:
            return x.name
    return ""


def _read(program: Program, body: Body, name: str, size: int) -> int:
    """Bytes that a fused computation reads of a value of `size` bytes."""
    users = [x for x in body.values() if name in x.operands]
    if not users:
        return size
    return sum(_read_by(program, body, user, name, size) for user in users)


def _read_by(program: Program, body: Body, user: Instruction, name: str, size: int) -> int:
    """Bytes that one instruction reads of a value of `size` bytes."""
    is_first = user.operands.index(name) == 0
    if is_first and user.opcode in SLICES:
        return _bytes(user.arrays)
    if is_first and user.opcode == UPDATE:
        return 0
    if user.opcode == "bitcast":
        return _read(program, body, user.name, size)
    if user.opcode == "fusion":
        inner = program.inside(user)
        return _read(program, inner, _parameter(inner, user.operands.index(name)), size)
    return size


def _written(program: Program, body: Body, fusion: Instruction) -> list[int]:
    """Bytes that a fusion writes of each of its results."""
    root = root_of(body)
    names = root.operands if root.opcode == "tuple" else (root.name,)
    made = [_made(program, body, body[name]) for name in names]
    whole = [array.num_bytes for array in fusion.arrays]
    return made if len(made) == len(whole) else whole


def _made(program: Program, body: Body, x: Instruction) -> int:
    """Bytes that are written to make one result of a fused computation."""
    if x.opcode == UPDATE and _is_given(body, x.operands[0]) and x.operands[1] in body:
        return _bytes(body[x.operands[1]].arrays)
    if x.opcode == "bitcast" and x.operands and x.operands[0] in body:
        return _made(program, body, body[x.operands[0]])
    if x.opcode == "fusion":
        inner = program.inside(x)
        if root_of(inner).opcode != "tuple":
            return _made(program, inner, root_of(inner))
    return _bytes(x.arrays)


def _is_given(body: Body, name: str) -> bool:
    """Whether a value is a parameter, perhaps in another shape, and so can be updated in place."""
    x = body.get(name)
    while x is not None and x.opcode == "bitcast":
        x = body.get(x.operands[0])
    return x is not None and x.opcode == "parameter"


def _bytes(arrays: list[Array]) -> int:
    return sum(array.num_bytes for array in arrays)
