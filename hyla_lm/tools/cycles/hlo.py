"""The text of a compiled program: its instructions, and how often each of them runs."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(([^)]*)\)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")
_STATED_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')
_INTEGER = re.compile(r" constant\([{ ]*(-?\d+)[} ]*\)")
_INDEX = re.compile(r"\bindex=(\d+)")
_SAME = ("copy", "bitcast", "reshape", "convert", "copy-start", "copy-done", "opt-barrier")


class Array(NamedTuple):
    """One array of an instruction's result."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        bits = 8 if self.dtype == "pred" else int((re.findall(r"\d+", self.dtype) or ["0"])[0])
        return math.ceil(math.prod(self.shape) * bits / 8)


class Instruction(NamedTuple):
    """One line of a computation."""

    name: str
    opcode: str
    result: str
    operands: tuple[str, ...]
    line: str

    @property
    def op_name(self) -> str:
        """The place in the model that the instruction comes from; empty if not given."""
        match = _OP_NAME.search(self.line)
        return match[1] if match else ""

    @property
    def arrays(self) -> list[Array]:
        return [
            Array(dtype, tuple(int(size) for size in sizes.split(",") if size))
            for dtype, sizes in _ARRAY.findall(self.result)
        ]

    def called(self, attribute: str) -> str:
        """The computation that an attribute such as `body` names; empty without one."""
        match = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.line)
        return match[1] if match else ""


def parse_instruction(line: str) -> Instruction | None:
    """The instruction on a line; None for a line without one, ValueError if it cannot be read."""
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    name, rest = match.groups()
    operation = _OPCODE.search(f" {rest}")
    if operation is None:
        raise ValueError(f"cannot read the HLO instruction {line.strip()[:200]!r}.")
    result = rest[: max(0, operation.start() - 1)]
    operands = tuple(re.findall(r"%([\w.\-]+)", operation[2]))
    return Instruction(name, operation[1], result, operands, line)


class Program:
    """The computations of scheduled HLO text, each with its named instructions."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.notes: list[str] = []
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self.computations.setdefault(start[2], {})
                self.entry = start[2] if start[1] else self.entry
            elif instruction := parse_instruction(line):
                current[instruction.name] = instruction
        if not self.entry:
            raise ValueError("the compiled program has no entry computation that can be read.")

    def note(self, sentence: str) -> None:
        """Notes once what could not be known."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def trips(self, loop: Instruction, computation: str) -> int:
        """How often a while loop runs; 1, with a note, if the text does not say."""
        count = self._known_trips(loop, computation)
        if count is None:
            self.note("loops whose trips are not known are counted once")
        return 1 if count is None else count

    def _known_trips(self, loop: Instruction, computation: str) -> int | None:
        """The trips that the compiler states, or those of a counter that grows between constants.

        The condition is that an element of the loop's tuple is below a limit; the body adds a step.
        """
        if stated := _STATED_TRIPS.search(loop.line):
            return int(stated[1])
        condition, body = (self.computations[loop.called(x)] for x in ("condition", "body"))
        around = self.computations[computation]
        test, result, given = root_of(condition), root_of(body), _source(around, loop.operands[0])
        if test.called("direction") != "LT" or not given.opcode == result.opcode == "tuple":
            return None
        counter, limit = (_source(condition, name) for name in test.operands)
        index = _number(_INDEX, counter)
        if index is None:
            return None
        change = _source(body, result.operands[index])
        terms = [_source(body, name) for name in change.operands]
        steps = [x for x in terms if _number(_INDEX, x) != index]
        if change.opcode != "add" or len(steps) != 1:
            return None
        ends = [_source(around, given.operands[index]), limit, steps[0]]
        numbers = [number for x in ends if (number := _number(_INTEGER, x)) is not None]
        if len(numbers) < len(ends) or numbers[-1] < 1:
            return None
        return len(range(*numbers))

    def walk(self, name: str = "", times: int = 1) -> Iterator[tuple[Instruction, str, int]]:
        """Every instruction that runs, with its computation and number of runs; a fusion is one."""
        name = name or self.entry
        for instruction in self.computations[name].values():
            yield instruction, name, times
            if instruction.opcode == "while":
                repeated = times * self.trips(instruction, name)
                yield from self.walk(instruction.called("body"), repeated)
                yield from self.walk(instruction.called("condition"), repeated)
            elif instruction.opcode == "call":
                yield from self.walk(instruction.called("to_apply"), times)
            elif instruction.opcode == "conditional":
                yield from self.walk(self._branch(instruction), times)

    def _branch(self, conditional: Instruction) -> str:
        """The longest branch, or the shortest if the program says that the other runs rarely."""
        listed = re.search(r"branch_computations=\{([^}]*)\}", conditional.line)
        names = re.findall(r"[\w.\-]+", listed[1]) if listed else []
        names = names or [conditional.called(f"{x}_computation") for x in ("true", "false")]
        choose = min if "rarely" in conditional.op_name else max
        return choose(names, key=lambda name: len(self.computations[name]))

    def inside(self, instruction: Instruction) -> Mapping[str, Instruction]:
        """The instructions of the computation that a fusion or an async start calls."""
        match = _CALLED.search(instruction.line)
        return self.computations.get(match[1], {}) if match else {}


def root_of(computation: Mapping[str, Instruction]) -> Instruction:
    """The instruction whose value is that of the computation."""
    return next(x for x in computation.values() if x.line.lstrip().startswith("ROOT "))


def _source(computation: Mapping[str, Instruction], name: str) -> Instruction:
    """The instruction that makes a value, before copies and changes of its type."""
    instruction = computation[name]
    while instruction.opcode in _SAME:
        instruction = computation[instruction.operands[0]]
    return instruction


def _number(pattern: re.Pattern[str], x: Instruction) -> int | None:
    match = pattern.search(x.line)
    return int(match[1]) if match else None
