"""The text of a compiled program: its computations, and how often each instruction runs."""

import re
from collections.abc import Iterator, Mapping, Sequence

from hyla_lm.tools.cycles import loops
from hyla_lm.tools.cycles.instructions import Instruction, parse_instruction
from hyla_lm.tools.plan.notes import Notes

_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_CALLED = re.compile(r"(?:calls|to_apply)=%?([\w.\-]+)")


class Program:
    """The computations of scheduled HLO text.

    `notes` says what could not be read.
    """

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        self.notes = Notes()
        self._trips: dict[str, int] = {}
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if start := _COMPUTATION.match(line):
                current = self.computations.setdefault(start[2], {})
                self.entry = start[2] if start[1] else self.entry
            elif found := parse_instruction(line):
                current[found.name] = found
        if not self.entry:
            raise ValueError("the compiled program has no entry computation that can be read.")

    def trips(self, loop: Instruction, computation: str) -> int:
        """How often a while loop runs; 1, with a note, if the text does not say."""
        if loop.name not in self._trips:
            found = loops.trips(self.computations, loop, computation)
            if found is None:
                self.notes.add("loops with trips not known, counted once", loop.name)
            self._trips[loop.name] = 1 if found is None else found
        return self._trips[loop.name]

    def walk(self, name: str = "", times: int = 1) -> Iterator[tuple[Instruction, str, int]]:
        """Every instruction that runs, with its computation and number of runs; a fusion is one."""
        name = name or self.entry
        for instruction in self.computations[name].values():
            yield instruction, name, times
            if instruction.opcode == "while":
                trips = times * self.trips(instruction, name)
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
        kind = f"conditionals of which the {which} branch is counted{reason}"
        self.notes.add(kind, conditional.name)
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
