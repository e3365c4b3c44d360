"""Counts the cycles of what libtpu compiled by running the scalar half of each program.

libtpu writes a program as VLIW bundles, one per cycle, with latencies as empty bundles. Running the
scalar operations (loop counters, predicates, branches) gives how often each bundle is issued. Of a
chip with two cores the first is run. Waiting for memory is not counted. Values that come from data
are unknown; a branch on one is an error, never a guess.
"""

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PROGRAM = "packed-bundles-post-ra"  # of the names of libtpu's files
DELAY_SLOTS = 4
ALLOCATION_BYTES = 1 << 20
MAX_STEPS = 100_000_000
WORD = 0xFFFFFFFF

_INNER_COMMENT = re.compile(r"/\*(?:(?!/\*|\*/).)*\*/", re.S)
_CORE_ID = re.compile(r"sld \[smem:\[#allocation\d+\]\] /\* core id \*/")
_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\b[^{\n]*\{(.*)\}", re.M)
_OPERATION = re.compile(r"(?:(%\w+) = |%\d+\s+)?([a-z][\w.]*)\s*(.*)")
_REGISTER = re.compile(r"%([sp]\d+)_([sp]\d+)")
_GUARD = re.compile(r"^\((!?)(%p\d+_p\d+)(?:, (%\w+))?\)(?:,\s*)?")
_GUARD_OF_A_LOAD = re.compile(r"\((!?)(%p\d+_p\d+)\)\s*$")
_INDEX = re.compile(r"\bindex: (\d+)")
_TARGET = re.compile(r"target bundleno = (\d+)")
_TERM = re.compile(r"\[(?:\w+:)?\[?([^\]]*)\]?\]|(!?%\w+)|(-?\$?(?:0x[0-9a-f]+|\d+))")

Value = int | None


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 & 1 else x


_ARITHMETIC: dict[str, Callable[..., int]] = {
    "smov": lambda a: a,
    "sadd": lambda a, b: a + b,
    "ssub": lambda a, b: a - b,
    "smul": lambda a, b: a * b,
    "sand": lambda a, b: a & b,
    "sor": lambda a, b: a | b,
    "sxor": lambda a, b: a ^ b,
    "sshll": lambda a, b: a << b,
    "sshrl": lambda a, b: a >> b,
    "sshra": lambda a, b: _signed(a) >> b,
    "smin": lambda a, b: min(_signed(a), _signed(b)),
    "smax": lambda a, b: max(_signed(a), _signed(b)),
    "scalar_lea": lambda *terms: sum(terms),
    "scalar_select": lambda p, a, b: a if p else b,
    "int_to_ptr": lambda a: a,
    "pnand": lambda a, b: int(not (a and b)),
    "por": lambda a, b: int(bool(a or b)),
    "pand": lambda a, b: int(bool(a and b)),
    "pneg": lambda a: int(not a),
    "pmov": lambda a: a,
}
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


class Operation(NamedTuple):
    """One scalar operation: the register it writes, its guard and operands as written.

    If the guard does not hold, the register gets `otherwise`; None leaves it unchanged.
    """

    name: str
    register: str | None
    guard: str | None
    negated: bool
    otherwise: str | None
    operands: tuple[str, ...]
    text: str


@dataclass
class Machine:
    """Registers by their physical name, SMEM by address; a missing value is unknown."""

    registers: dict[str, Value] = field(default_factory=dict)
    memory: dict[int, Value] = field(default_factory=dict)
    scalars: Mapping[int, int] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)

    def value(self, operand: str) -> Value:
        kind, meaning = _meaning(operand)
        if kind == "number":
            return meaning
        if kind == "register":
            return self.registers.get(meaning)
        if kind == "negated":
            flag = self.registers.get(meaning)
            return None if flag is None else int(not flag)
        if kind == "address":
            return self.bases.setdefault(meaning, (len(self.bases) + 1) * ALLOCATION_BYTES)
        terms = [self.value(term) for term in meaning]
        known = [term for term in terms if term is not None]
        return sum(known) & WORD if len(known) == len(terms) else None

    def result(self, operation: Operation) -> Value:
        if operation.name.startswith("inlined_call_operand"):
            index = operation.operands[0]
            in_memory = "<no memory space>" not in operation.text
            return self.value(f"#operand{index}") if in_memory else self.scalars.get(int(index))
        values = [self.value(operand) for operand in operation.operands]
        name = operation.name.split(".")
        if name[0] == "sld":
            return None if values[0] is None else self.memory.get(values[0])
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        if name[0] == "scmp":
            pair = known if name[2].startswith("u") else map(_signed, known)
            return int(_COMPARISONS[name[1]](*pair))
        function = _ARITHMETIC.get(name[0])
        return None if function is None else function(*known) & WORD


@cache
def _meaning(operand: str) -> tuple[str, Any]:
    """Parses an operand: a number, a register, an address, or a sum of these."""
    if register := _REGISTER.fullmatch(operand.removeprefix("!")):
        return "negated" if operand[0] == "!" else "register", register[2]
    if operand.startswith("#"):
        return "address", operand
    if " + " in operand:
        return "sum", operand.split(" + ")
    try:
        return "number", int(operand.removeprefix("$"), 0) & WORD
    except ValueError:
        return "number", None


def _parse(text: str) -> list[list[Operation]]:
    text, left = _CORE_ID.sub("smov 0", text), -1
    while left:  # comments nest
        text, left = _INNER_COMMENT.subn("", text)
    bundles: list[list[Operation]] = []
    for bundle in _BUNDLE.finditer(text):
        if int(bundle[1], 16) != len(bundles):
            raise ValueError(f"bundle {len(bundles):#x} is missing before {bundle[0][:80]!r}.")
        operations = (_operation(part.strip()) for part in bundle[2].split(";;"))
        bundles.append([operation for operation in operations if operation is not None])
    return bundles


def _operation(text: str) -> Operation | None:
    match = _OPERATION.match(text)
    if match is None or match[2] == "sphi":  # a phi's inputs lie in the register it names
        return None
    register = _REGISTER.fullmatch(match[1] or "")
    if register is None and match[2] not in ("sst", "sbr.rel"):
        return None
    if match[2].startswith("inlined_call_operand"):
        index = _INDEX.search(text)
        if register is None or index is None:
            return None
        return Operation(match[2], register[2], None, False, None, (index[1],), text)
    guard = _GUARD.match(match[3]) or _GUARD_OF_A_LOAD.search(match[3])
    rest = match[3].replace(guard[0], "", 1) if guard else match[3]
    if target := _TARGET.search(rest):
        rest = target[1]
    rest = re.sub(r"\[\w+:\$\w+\]", "", rest)
    operands = tuple("".join(filter(None, term)) for term in _TERM.findall(rest))
    return Operation(
        match[2],
        register[2] if register else None,
        guard[2] if guard else None,
        bool(guard and guard[1]),
        guard[3] if guard and guard.re is _GUARD else None,
        operands,
        text,
    )


def run(path: Path, scalars: Mapping[int, int] | None = None) -> list[int]:
    """How often each bundle of a dump is issued; raises ValueError if control is unknown.

    `scalars` are the known scalar operands by their index.
    """
    bundles, machine = _parse(path.read_text()), Machine(scalars=scalars or {})
    changes = [0] * (len(bundles) + 1)  # of the count from one bundle to the next
    following = _next_with_operations(bundles)
    at, target, slots = 0, 0, -1
    for _ in range(MAX_STEPS):
        if slots == 0:
            at, slots = target, -1
        if at >= len(bundles):
            return list(itertools.accumulate(changes[:-1]))
        stop = min(following[at], at + slots if slots > 0 else len(bundles))
        step = max(1, stop - at)  # bundles without scalar operations are only counted
        changes[at] += 1
        changes[at + step] -= 1
        jump = _issue(machine, bundles[at], path.name) if stop == at else None
        slots -= min(step, slots) if slots > 0 else 0
        if jump is not None:
            target, slots = jump, DELAY_SLOTS
        at += step
    raise ValueError(f"{path.name} does not end within {MAX_STEPS} steps.")


def _next_with_operations(bundles: list[list[Operation]]) -> list[int]:
    following = [len(bundles)] * (len(bundles) + 1)
    for at in reversed(range(len(bundles))):
        following[at] = at if bundles[at] else following[at + 1]
    return following


def _issue(machine: Machine, bundle: list[Operation], where: str) -> int | None:
    """Executes one bundle, reading all registers before writing any; returns a taken branch."""
    written: list[tuple[dict, str | int, Value]] = []
    jump = None
    for operation in bundle:
        holds: Value = 1
        if operation.guard is not None:
            holds = machine.value(operation.guard)
            holds = None if holds is None else int(bool(holds) != operation.negated)
        if operation.name == "sbr.rel":
            if holds is None:
                raise ValueError(f"{where}: a branch depends on data: {operation.text[:200]}")
            jump = int(operation.operands[0]) if holds else jump
        elif operation.name == "sst":
            address = machine.value(operation.operands[0])
            if address is None:
                raise ValueError(f"{where}: a store depends on data: {operation.text[:200]}")
            written.append((machine.memory, address, machine.value(operation.operands[1])))
        elif operation.register is not None:
            value = _written(machine, operation, operation.register, holds)
            written.append((machine.registers, operation.register, value))
    for store, place, value in written:
        store[place] = value
    return jump


def _written(machine: Machine, operation: Operation, register: str, holds: Value) -> Value:
    """What a register has after an operation whose guard holds, or does not, or is unknown."""
    if holds is None:
        return None
    if holds:
        return machine.result(operation)
    if operation.otherwise is not None:
        return machine.value(operation.otherwise)
    return machine.registers.get(register)


class Dumps:
    """The programs that libtpu wrote to a folder, by the name of their HLO instruction.

    The compiler writes equal code once, with a map of the instructions that share it.
    """

    def __init__(self, folder: Path):
        self._programs: dict[str, Path] = {}
        for path in sorted(folder.glob(f"*-{PROGRAM}.txt")):
            if match := re.fullmatch(rf"\d+-(.+?)-\d+-{PROGRAM}\.txt", path.name):
                self._programs[match[1]] = path
        self._cycles: dict[tuple[Path, str], int | None] = {}
        for path in folder.glob("*deduplication-map.txt"):
            for block in path.read_text().split("key:")[1:]:
                first, *rest = block.splitlines()
                for twin in (line.strip() for line in rest if line.startswith("  ")):
                    if first in self._programs:
                        self._programs.setdefault(twin, self._programs[first])

    def cycles(self, name: str, scalars: Mapping[int, int] | None = None) -> int | None:
        """Bundles issued in one run; None without a program or if control depends on data."""
        path = self._programs.get(name)
        if path is None:
            return None
        key = path, repr(scalars)
        if key not in self._cycles:
            try:
                self._cycles[key] = sum(run(path, scalars)) or None
            except ValueError:
                self._cycles[key] = None
        return self._cycles[key]
