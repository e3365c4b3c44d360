"""The text of a compiled program: computations, instructions, arrays, and how often each runs."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(([^)]*)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](?:\{([^}]*)\})?")
_LIMIT = re.compile(r"s32\[\][^ ]* constant\((\d+)\)")
_KNOWN_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")


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


class Program:
    """The computations of scheduled HLO text.

    `notes` says what could not be read. A loop is a scan: it counts from 0 to the one constant of
    its condition, unless the compiler states the trips.
    """

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.notes: list[str] = []
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self.computations.setdefault(start[2], {})
                self.entry = start[2] if start[1] else self.entry
            elif found := _INSTRUCTION.match(line):
                current[found[1]] = _instruction(found[1], found[2], line)
        if not self.entry:
            raise ValueError("the compiled program has no entry computation that can be read.")

    def trips(self, loop: Instruction) -> int:
        """How often a while loop runs; 1, with a note, if the text does not say."""
        if known := _KNOWN_TRIPS.search(loop.line):
            return int(known[1])
        condition = self.computations[loop.called("condition")]
        limits = _LIMIT.findall("\n".join(x.line for x in condition.values()))
        if len(limits) == 1:
            return int(limits[0])
        note = f"loop {loop.name} ({loop.op_name}): trips not known, counted once"
        if note not in self.notes:
            self.notes.append(note)
        return 1

    def walk(self, name: str = "", times: int = 1) -> Iterator[tuple[Instruction, str, int]]:
        """Every instruction that runs, with its computation and number of runs; a fusion is one."""
        name = name or self.entry
        for instruction in self.computations[name].values():
            yield instruction, name, times
            if instruction.opcode == "while":
                trips = times * self.trips(instruction)
                yield from self.walk(instruction.called("body"), trips)
                yield from self.walk(instruction.called("condition"), trips)
            elif instruction.opcode == "call":
                yield from self.walk(instruction.called("to_apply"), times)
            elif instruction.opcode == "conditional":
                yield from self.walk(self._branch(instruction), times)

    def _branch(self, conditional: Instruction) -> str:
        """The longest branch, or the shortest if the program says that the other runs rarely."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.line)
        names = re.findall(r"[\w.\-]+", listed[1]) if listed else []
        names = names or [conditional.called(f"{x}_computation") for x in ("true", "false")]
        rarely = "rarely" in conditional.op_name
        which = "shortest" if rarely else "longest"
        reason = ", since the program calls the other rare" if rarely else ""
        note = f"conditional {conditional.name}: its {which} branch is counted{reason}"
        if note not in self.notes:
            self.notes.append(note)
        choose = min if rarely else max
        return choose(names, key=lambda name: len(self.computations[name]))

    def inside(self, instruction: Instruction) -> Mapping[str, Instruction]:
        """The instructions of the computation that a fusion or an async start calls."""
        found = _CALLED.search(instruction.line)
        return self.computations.get(found[1], {}) if found else {}

    def operands(self, instruction: Instruction, computation: str) -> Sequence[Instruction]:
        """The instructions that compute an instruction's operands."""
        known = self.computations[computation]
        return [known[name] for name in instruction.operands if name in known]


def _instruction(name: str, rest: str, line: str) -> Instruction:
    found = _OPCODE.search(f" {rest}")
    if found is None:
        raise ValueError(f"cannot read the HLO instruction {line.strip()[:200]!r}.")
    result = rest[: max(0, found.start() - 1)]
    operands = tuple(re.findall(r"%([\w.\-]+)", found[2]))
    return Instruction(name, found[1], result, operands, line)
