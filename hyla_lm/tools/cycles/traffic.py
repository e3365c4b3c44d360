"""Bytes that an operation moves from and to HBM.

Of an array that it slices it reads the slice, and of one that it updates in place it writes the
update. A loop that stacks what its trips make does both: whole arrays would count once per trip.
"""

import re
from collections.abc import Mapping

from hyla_lm.tools.cycles.hlo import Array, Instruction, Program, root_of

SLICES = ("slice", "dynamic-slice", "gather")
UPDATE = "dynamic-update-slice"
_PARAMETER = re.compile(r" parameter\((\d+)\)")

Body = Mapping[str, Instruction]


def hbm_bytes(program: Program, instruction: Instruction, computation: str) -> int:
    """Bytes of results and operands in HBM, as far as the operation touches them."""
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
