"""Cycles and traffic of operations, by the text of small programs."""

import math
from pathlib import Path

import pytest

from hyla_lm.attention.chips import V5E
from hyla_lm.tools.cycles.bundles import Dumps
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.operations import cycles_of, hbm_bytes

STEP = "jit(train_step)/while/body/closed_call"


def fusion(name: str, cycles: int, op_name: str, result: str = "f32[8]{0:T(256)S(1)}") -> str:
    return (
        f'  %{name} = {result} fusion(%p), kind=kLoop, metadata={{op_name="{op_name}"}}, '
        f'backend_config={{"estimated_cycles":"{cycles}"}}\n'
    )


PROGRAM = (
    "%cond (s: (s32[])) -> pred[] {\n  %s = (s32[]) parameter(0)\n"
    "  %k = s32[]{:T(128)} constant(4)\n  %i = s32[] get-tuple-element(%s), index=0\n"
    "  ROOT %less = pred[] compare(%i, %k), direction=LT\n}\n\n"
    "%body (t: (s32[])) -> (s32[]) {\n  %t = (s32[]) parameter(0)\n"
    + fusion("looped", 100, f"{STEP}/jvp()/while/body/mul")
    + "  %j = s32[] get-tuple-element(%t), index=0\n  %one = s32[] constant(1)\n"
    "  %next = s32[] add(%j, %one)\n  ROOT %u = (s32[]) tuple(%next)\n}\n\n"
    "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0:T(256)S(1)} parameter(0)\n"
    + fusion("up", 70, f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/feedforward/up/dot_general")
    + fusion("adam", 30, "jit(train_step)/add", "f32[1048576]{0:T(256)}")
    + fusion("unknown_fusion", 1 << 63, "jit(train_step)/sqrt")
    + "  %zero = s32[] constant(0)\n  %t = (s32[]) tuple(%zero)\n"
    "  %w = (s32[]) while(%t), condition=%cond, body=%body\n"
    '  %hyla = f32[8]{0:T(256)S(1)} custom-call(%p), custom_call_target="tpu_custom_call", '
    'metadata={op_name="jvp()/blocks/block_0/attention/shard_map/hyla_forward/pallas_call"}\n'
    '  %other = f32[8]{0:T(256)S(1)} custom-call(%p), custom_call_target="tpu_custom_call"\n'
    "  %r = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add\n}\n"
)
STRAIGHT = "".join(f"  {number:#x} : {{ }}\n" for number in range(50))
ADAM_TRAFFIC = math.ceil(2**22 / 819e9 * 1.5e9)


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    (tmp_path / "1-hyla-01-packed-bundles-post-ra.txt").write_text(STRAIGHT.replace("0x0 ", "0 "))
    (tmp_path / "2-up-01-packed-bundles-post-ra.txt").write_text("   0 : { }\n")
    (tmp_path / "3-TLP-00-deduplication-map.txt").write_text("key:up\nordinal:1\n  up\n  adam\n")
    return Dumps(tmp_path)


def test_steps_are_estimated_and_counted_and_loops_count_their_trips(dumps: Dumps) -> None:
    hlo = Program(PROGRAM)
    kernel, looped, counter = 50, 4 * 100, 4 * 2  # a counter is as long as its traffic
    either = kernel + looped + counter
    # `up` lies on the chip: its one bundle. `adam` is as long as its traffic. The links are counted
    # elsewhere.
    assert cycles_of(hlo, dumps, V5E) == (either + 70 + 30, either + 1 + ADAM_TRAFFIC)
    assert [note.partition(" ")[0] for note in hlo.notes] == ["fusions", "kernels"]


STACK, ROW = "f32[64,8]{1,0}", "f32[1,8]{1,0}"
STACK_BYTES, ROW_BYTES = 4 * 64 * 8, 4 * 8
GIVEN = (
    f"  %p0 = {STACK} parameter(0)\n  %p1 = {ROW} parameter(1)\n  %i = s32[] constant(3)\n"
    f"  %made = {ROW} tanh(%p1)\n"
)
UPDATE = "dynamic-update-slice(%p0, %made, %i, %i)"
SLICE = f"  %one = {ROW} dynamic-slice(%p0, %i), dynamic_slice_sizes={{1,8}}\n"
INNER = (
    f"}}\n\n%inner (y: f32[]) -> f32[] {{\n  %q0 = {STACK} parameter(0)\n"
    f"  %j = s32[] constant(1)\n"
    f"  ROOT %s = {ROW} dynamic-slice(%q0, %j), dynamic_slice_sizes={{1,8}}\n"
)


@pytest.mark.parametrize(
    ("fused", "result", "bytes_moved"),
    [
        # An array that is updated in place counts its update, also as one result of several.
        (f"  ROOT %u = {STACK} {UPDATE}\n", STACK, 2 * ROW_BYTES),
        (
            f"  %u = {STACK} {UPDATE}\n  %b = {STACK} bitcast(%u)\n"
            f"  ROOT %r = ({STACK}, {ROW}) tuple(%b, %made)\n",
            f"({STACK}, {ROW})",
            3 * ROW_BYTES,
        ),
        # One that is sliced counts its slices, and whole where it is also read whole.
        (
            f"{SLICE}  %all = f32[1] reduce(%p0, %i)\n  ROOT %r = {ROW} multiply(%one, %all)\n",
            ROW,
            2 * ROW_BYTES + STACK_BYTES,
        ),
        (
            f"  %one = {ROW} fusion(%p0), kind=kLoop, calls=%inner\n"
            f"  ROOT %r = {ROW} multiply(%one, %made)\n{INNER}",
            ROW,
            3 * ROW_BYTES,
        ),
    ],
)
def test_what_a_fusion_moves(fused: str, result: str, bytes_moved: int) -> None:
    program = Program(
        f"%fused (x: f32[]) -> f32[] {{\n{GIVEN}{fused}}}\n\n"
        f"ENTRY %main (t: f32[]) -> f32[] {{\n  %a = {STACK} get-tuple-element(%t)\n"
        f"  %b = {ROW} get-tuple-element(%t)\n"
        f"  %f = {result} fusion(%a, %b), kind=kLoop, calls=%fused\n}}\n"
    )
    assert hbm_bytes(program, program.computations["main"]["f"], "main") == bytes_moved
