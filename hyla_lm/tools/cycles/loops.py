"""How often a while loop runs, by running the integers that its condition depends on."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hyla_lm.tools.cycles.instructions import Instruction

MAX_TRIPS = 100_000
Value = int | None
Computations = Mapping[str, dict[str, Instruction]]
Elements = Callable[[int], Value]

_INTEGER = re.compile(r"(pred|[su](\d+))\[[1,]*\]")
_CONSTANT = re.compile(r" constant\([{ ]*(-?\d+|true|false)[} ]*\)")
_KNOWN_TRIPS = re.compile(r'known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')
_PARAMETER = re.compile(r" parameter\((\d+)\)")
_INDEX = re.compile(r"\bindex=(\d+)")
_SAME = ("copy", "bitcast", "reshape", "convert", "copy-start", "copy-done", "opt-barrier")
_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "minimum": min,
    "maximum": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "negate": lambda a: -a,
    "select": lambda p, a, b: a if p else b,
    "LT": lambda a, b: int(a < b),
    "LE": lambda a, b: int(a <= b),
    "GT": lambda a, b: int(a > b),
    "GE": lambda a, b: int(a >= b),
    "EQ": lambda a, b: int(a == b),
    "NE": lambda a, b: int(a != b),
}


def trips(computations: Computations, loop: Instruction, where: str) -> int | None:
    """How often a loop in the computation `where` runs; None if the text does not say."""
    if known := _KNOWN_TRIPS.search(loop.line):
        return int(known[1])
    start = _Scope(computations, where)
    condition, body = loop.called("condition"), loop.called("body")
    values: dict[int, Value] = {}

    def first(index: int) -> Value:
        return values.setdefault(index, start.element(loop.operands[0], index))

    for count in range(MAX_TRIPS):
        goes_on = _Scope(computations, condition, elements=first).root()
        if not goes_on:
            return None if goes_on is None else count
        following = _advanced(computations, body, first, values)
        if following == values:
            return None
        values.update(following)
    return None


def _advanced(
    computations: Computations, body: str, elements: Elements, values: dict[int, Value]
) -> dict[int, Value]:
    """The elements known so far, after one more run of the body; may come to know more."""
    following: dict[int, Value] = {}
    while missing := values.keys() - following.keys():
        scope = _Scope(computations, body, elements=elements)
        following |= {index: scope.element(scope.root_name, index) for index in missing}
    return following


@dataclass
class _Scope:
    """A computation whose integers are evaluated, given its arguments.

    `elements` gives those of the tuple that is the argument of a loop; without it they are those
    with which the loop around starts, if the loop does not change them.
    """

    computations: Computations
    name: str
    arguments: list[Value] | None = None
    elements: Elements | None = None
    known: dict[str, Value] = field(default_factory=dict)

    @property
    def root_name(self) -> str:
        """The instruction whose value is that of the computation."""
        lines = self.computations[self.name]
        marked = (x.name for x in reversed(lines.values()) if x.line.lstrip().startswith("ROOT "))
        return next(marked, "")

    def root(self) -> Value:
        return self.value(self.root_name)

    def value(self, name: str) -> Value:
        if name not in self.known:
            x = self.computations[self.name].get(name)
            self.known[name] = None if x is None else self._evaluate(x)
        return self.known[name]

    def _evaluate(self, x: Instruction) -> Value:
        integer = _INTEGER.match(x.result.lstrip("("))
        if integer is None:
            return None
        found = self._unbounded(x)
        return None if found is None else _wrapped(found, integer[1])

    def _unbounded(self, x: Instruction) -> Value:
        if x.opcode == "constant":
            constant = _CONSTANT.search(x.line)
            text = constant[1] if constant else ""
            return int(text == "true") if text in ("true", "false") else int(text) if text else None
        if x.opcode == "parameter":
            number = _PARAMETER.search(x.line)
            return self.arguments[int(number[1])] if number and self.arguments else None
        if x.opcode == "get-tuple-element":
            index = _INDEX.search(x.line)
            return self.element(x.operands[0], int(index[1])) if index else None
        values = [self.value(operand) for operand in x.operands]
        if x.opcode in _SAME:
            return values[0]
        if x.opcode in ("fusion", "call"):
            called = x.called("calls") or x.called("to_apply")
            return _Scope(self.computations, called, values).root()
        if x.opcode == "not" and values[0] is not None:
            return int(not values[0]) if x.result.startswith("pred") else ~values[0]
        function = _ARITHMETIC.get(x.called("direction") or x.opcode)
        known = [value for value in values if value is not None]
        return function(*known) if function and known and len(known) == len(values) else None

    def element(self, name: str, index: int) -> Value:
        """The integer at an index of the tuple that an instruction makes."""
        x = self.computations[self.name].get(name)
        if x is None:
            return None
        if x.opcode == "tuple":
            return self.value(x.operands[index])
        if x.opcode in ("copy", "opt-barrier", "bitcast"):
            return self.element(x.operands[0], index)
        if x.opcode == "while" and _is_kept(self.computations, x.called("body"), index):
            return self.element(x.operands[0], index)
        if x.opcode != "parameter":
            return None
        return self.elements(index) if self.elements else self._around(index)

    def _around(self, index: int) -> Value:
        """The element with which the loop around this body starts, if it is never changed."""
        for name, lines in self.computations.items():
            for x in lines.values():
                if x.opcode == "while" and self.name in (x.called("body"), x.called("condition")):
                    kept = _is_kept(self.computations, x.called("body"), index)
                    outside = _Scope(self.computations, name)
                    return outside.element(x.operands[0], index) if kept else None
        return None


def _is_kept(computations: Computations, body: str, index: int) -> bool:
    """Whether the body of a loop gives an element on as it got it."""
    scope, lines = _Scope(computations, body), computations[body]
    root = lines.get(scope.root_name)
    if root is None or root.opcode != "tuple" or index >= len(root.operands):
        return False
    given = lines.get(root.operands[index])
    while given is not None and given.opcode in ("copy", "bitcast"):
        given = lines.get(given.operands[0])
    if given is None or given.opcode != "get-tuple-element":
        return False
    found, source = _INDEX.search(given.line), lines.get(given.operands[0])
    same = found is not None and int(found[1]) == index
    return same and source is not None and source.opcode == "parameter"


def _wrapped(value: int, dtype: str) -> int:
    """A value as an integer of this type holds it."""
    if dtype == "pred":
        return int(bool(value))
    bits = int(dtype[1:])
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype[0] == "s" and value >> (bits - 1) else value
