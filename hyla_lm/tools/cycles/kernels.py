"""Cycles of the Pallas kernels of a compiled program, by counting their bundles."""

import re

from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Instruction, Program

KERNEL = 'custom_call_target="tpu_custom_call"'
_CONSTANT = re.compile(r"\w+\[[1,]*\][^ ]* constant\([{ ]*(-?\d+)[} ]*\)")


def kernel_cycles(program: Program, dumps: Dumps) -> int:
    """Cycles of all kernels, without waits for memory; the program notes those it cannot count."""
    total = 0
    for instruction, computation, times in program.walk():
        if KERNEL in instruction.line:
            cycles = dumps.cycles(instruction.name, _scalars(program, instruction, computation))
            if cycles is None:
                program.note("kernels whose loops depend on data are taken as their FLOPs")
            total += times * (cycles or 0)
    return total


def _scalars(program: Program, kernel: Instruction, computation: str) -> dict[int, int]:
    """The kernel's operands that are constant scalars, by index; they control its loops."""
    constants = program.computations[computation]
    scalars = {}
    for index, name in enumerate(kernel.operands):
        if name in constants and (value := _CONSTANT.search(constants[name].line)):
            scalars[index] = int(value[1])
    return scalars
