"""The collectives of a compiled program: kind, bytes, mesh axes, purpose and time."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hyla_lm.tools.cycles.hlo import Array, Instruction, Program
from hyla_lm.tools.cycles.topology import Slice

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
PARAMETERS = "parameters for use"
GRADIENTS = "gradients"
TABLE = "token table for use"
TABLE_GRADIENT = "gradient of the token table"
ACTIVATIONS = "activations over model"
NUMBERS = "norms and metrics"
Groups = list[list[int]]

_CHAIN = re.compile(r"\bchannel_id=\d+, .*\bchain_id=\"\d+\"")
_LISTED = re.compile(r"replica_groups=\{(\{[\d,{} ]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(([\d,]*)\))? *\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_MESH_NAME = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_TRANSFER = re.compile(
    rf" send\(.*is_host_transfer=true.*_xla_host_transfer_rendezvous=\"({'|'.join(KINDS)})"
)
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{} ]*\})\}")
_OF_TABLE = re.compile(r"/embed/|\(head\)|/head/|logits")
_BACKWARD = re.compile(r"transpose\(")


@dataclass(frozen=True)
class Collective:
    """One collective of a step.

    `bytes` is the size of the whole array, which each chip has before a reduce-scatter or after any
    other kind; `times` is how often it runs in a step; `axes` are the mesh axes its groups span.
    """

    name: str
    kind: str
    bytes: int
    times: int
    group_size: int
    axes: tuple[str, ...]
    between_slices: bool
    is_async: bool
    shapes: tuple[tuple[int, ...], ...]
    op_name: str

    def bytes_sent(self) -> float:
        """Bytes that each chip sends in a step if the collective runs around a ring."""
        n = self.group_size
        per_run = {
            "all-reduce": 2 * (n - 1) / n,
            "all-gather": (n - 1) / n,
            "reduce-scatter": (n - 1) / n,
            "all-to-all": (n - 1) / n,
            "collective-permute": 1.0,
        }
        return self.times * self.bytes * per_run[self.kind]

    def seconds(self, topology: Slice) -> float:
        """Seconds in a step that its bytes take, without latency."""
        network = topology.chip.dcn_bytes_per_second
        return self.bytes_sent() / (
            network if self.between_slices else topology.ring_bytes_per_second
        )

    def purpose(self, table_rows: int | None) -> str:
        """What it is for; `table_rows` is the size of the vocabulary, None without one.

        A gather over axes that do not divide parameters is the second half of a sum of gradients. A
        permute belongs to a product that XLA does piece by piece: in the backward pass it carries a
        gradient, elsewhere a parameter.
        """
        if all(size == 1 for shape in self.shapes for size in shape):
            return NUMBERS
        if "model" in self.axes:
            return ACTIVATIONS
        if self._is_sum():
            return TABLE_GRADIENT if self._is_of_table(table_rows) else GRADIENTS
        return TABLE if self._is_of_table(table_rows) else PARAMETERS

    def _is_of_table(self, rows: int | None) -> bool:
        """Whether every array is the token table, or the rows of it that a scattered sum leaves."""
        if len(self.shapes) == 1 and _OF_TABLE.search(self.op_name):
            return True
        parts = self.group_size if self.kind == "reduce-scatter" else 1
        return all(
            len(shape) == 2 and rows in (shape[0], shape[0] * parts) for shape in self.shapes
        )

    def _is_sum(self) -> bool:
        if self.kind == "all-gather":
            return "fsdp" not in self.axes
        if self.kind == "collective-permute":
            return bool(_BACKWARD.search(self.op_name))
        return self.kind != "all-to-all"


def find_collectives(
    program: Program, mesh_shape: Mapping[str, int], slices: int = 1
) -> list[Collective]:
    """All collectives between chips, also inside fusions; loops count by their trips.

    One that overlaps several fusions appears in each of them, as links of one chain.
    """
    collectives = []
    chains: set[str] = set()
    chips = math.prod(mesh_shape.values())
    for instruction, _, times in program.walk():
        if transfer := _TRANSFER.search(instruction.line):
            collectives.append(_between_slices(instruction, transfer[1], times, slices))
        for x, is_async in _collectives_of(program, instruction):
            if chain := _CHAIN.search(x.line):
                if chain[0] in chains:
                    continue
                chains.add(chain[0])
            groups = _groups(x, chips)
            size = max(map(len, groups)) if groups else 1
            if size == 1:
                continue
            kind = _kind(instruction, x)
            arrays = _payload(x)
            scattered = kind == "reduce-scatter" and x.opcode.startswith("reduce-scatter")
            collectives.append(
                Collective(
                    instruction.name,
                    kind,
                    sum(array.num_bytes for array in arrays) * (size if scattered else 1),
                    times,
                    size,
                    _axes(groups, mesh_shape),
                    False,
                    is_async,
                    tuple(array.shape for array in arrays),
                    x.op_name or instruction.op_name,
                )
            )
    return collectives


def _between_slices(send: Instruction, kind: str, times: int, slices: int) -> Collective:
    """What each chip sends to other slices through its host."""
    array = send.arrays[0]
    return Collective(
        send.name,
        kind,
        array.num_bytes,
        times,
        slices,
        ("replica",),
        between_slices=True,
        is_async=True,
        shapes=(array.shape,),
        op_name=send.op_name,
    )


def _collectives_of(program: Program, outer: Instruction) -> Iterator[tuple[Instruction, bool]]:
    if _base(outer.opcode):
        if not outer.opcode.endswith("-done"):
            yield outer, outer.opcode.endswith("-start")
    elif outer.opcode in ("fusion", "async-start"):
        is_async = outer.opcode == "async-start" or "async" in outer.name
        for inner in program.inside(outer).values():
            for x, inner_async in _collectives_of(program, inner):
                yield x, is_async or inner_async


def _base(opcode: str) -> str:
    return next((kind for kind in KINDS if opcode in (kind, f"{kind}-start", f"{kind}-done")), "")


def _kind(outer: Instruction, x: Instruction) -> str:
    """The kind of a collective; a fusion of an all-reduce and a slice is a reduce-scatter."""
    fused = any("reduce-scatter" in name for name in (outer.name, outer.called("calls")))
    return "reduce-scatter" if outer is not x and fused else _base(x.opcode)


def _payload(x: Instruction) -> list[Array]:
    """The arrays that are sent; an asynchronous start names operands, results and flags."""
    arrays = [array for array in x.arrays if array.dtype != "token"]
    if x.opcode in ("all-gather-start", "collective-permute-start"):
        arrays = arrays[len(x.operands) : 2 * len(x.operands)]
    return arrays


def _groups(x: Instruction, chips: int) -> Groups:
    """The groups of chips, numbered as in the mesh; one group of all if none are named."""
    if x.opcode.startswith("collective-permute"):
        return [[int(i) for i in pair.split(",")] for pair in _braced(_PAIRS, x.line)]
    if listed := _braced(_LISTED, x.line):
        return [[int(i) for i in group.split(",")] for group in listed]
    if iota := _IOTA.search(x.line):
        shape, dims = (_integers(part) for part in iota.group(1, 2))
        order = _integers(iota[3]) if iota[3] else range(len(dims))
        return np.arange(chips).reshape(dims).transpose(order).reshape(shape).tolist()
    if mesh := _MESH.search(x.line):
        return _mesh_groups(*mesh.groups())
    return [list(range(chips))]


def _braced(pattern: re.Pattern[str], line: str) -> list[str]:
    found = pattern.search(line)
    return re.findall(r"\{([\d, ]+)\}", found[1]) if found else []


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def _mesh_groups(axes: str, device_ids: str | None, names: str) -> Groups:
    """Parses groups over mesh axes; 'x':(p)s is the part of size s of x after parts of size p."""
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes)}
    over = {n: (int(p or 1), int(s or sizes[n])) for n, p, s in _MESH_NAME.findall(names)}
    shape: list[int] = []
    moving: list[int] = []
    for name, size in sizes.items():
        before, part = over.get(name, (1, 1))
        shape += [before, part, size // (before * part)]
        if name in over:
            moving.append(len(shape) - 2)
    chips = math.prod(shape)
    ids = np.array(_integers(device_ids)) if device_ids else np.arange(chips)
    staying = [axis for axis in range(len(shape)) if axis not in moving]
    width = math.prod(shape[axis] for axis in moving)
    return ids.reshape(shape).transpose(staying + moving).reshape(-1, width).tolist()


def _axes(groups: Groups, mesh_shape: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes along which the chips of a group differ."""
    sizes: Sequence[int] = tuple(mesh_shape.values())
    differing: set[str] = set()
    for group in groups:
        places = np.array(np.unravel_index(group, sizes))
        differing |= {
            name for name, row in zip(mesh_shape, places, strict=True) if len(set(row.tolist())) > 1
        }
    return tuple(name for name in mesh_shape if name in differing)
