"""The instructions of HLO text: one line each, with the arrays it makes."""

import math
import re
from typing import NamedTuple

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(([^)]*)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_OP_NAME = re.compile(r'op_name="([^"]*)"')


class Array(NamedTuple):
    """One array of an instruction's result; `on_chip` if it lies in VMEM or SMEM."""

    dtype: str
    shape: tuple[int, ...]
    on_chip: bool

    @property
    def num_bytes(self) -> int:
        bits = 8 if self.dtype == "pred" else int((re.findall(r"\d+", self.dtype) or ["0"])[0])
        return math.ceil(math.prod(self.shape) * bits / 8)


class Instruction(NamedTuple):
    name: str
    opcode: str
    result: str
    operands: tuple[str, ...]
    line: str

    @property
    def op_name(self) -> str:
        """The place in the model that the instruction comes from; empty if not given."""
        found = _OP_NAME.search(self.line)
        return found[1] if found else ""

    @property
    def arrays(self) -> list[Array]:
        return [
            Array(dtype, tuple(int(size) for size in sizes.split(",") if size), "S(" in layout)
            for dtype, sizes, layout in _ARRAY.findall(self.result)
        ]

    def called(self, pattern: str) -> str:
        found = re.search(rf"\b{pattern}=%?([\w.\-]+)", self.line)
        return found[1] if found else ""


def parse_instruction(line: str) -> Instruction | None:
    """The instruction on a line; None for a line without one, ValueError if it cannot be read."""
    written = _INSTRUCTION.match(line)
    if written is None:
        return None
    name, rest = written.groups()
    found = _OPCODE.search(f" {rest}")
    if found is None:
        raise ValueError(f"cannot read the HLO instruction {line.strip()[:200]!r}.")
    result = rest[: max(0, found.start() - 1)]
    operands = tuple(re.findall(r"%([\w.\-]+)", found[2]))
    return Instruction(name, found[1], result, operands, line)
