"""What an operation moves from and to HBM, by the text of small programs."""

import pytest

from hyla_lm.tools.plan.hlo import Program
from hyla_lm.tools.plan.traffic import hbm_bytes

STACK, ROW, ON_CHIP = "f32[64,8]{1,0}", "f32[1,8]{1,0}", "f32[64,8]{1,0:T(8)S(1)}"
STACK_BYTES, ROW_BYTES = 4 * 64 * 8, 4 * 8


def moved(fused: str, result: str, operands: dict[str, str]) -> int:
    """Bytes that a fusion of these lines moves, given its result and operands by name."""
    given = "".join(
        f"  %{name} = {kind} get-tuple-element(%t)\n" for name, kind in operands.items()
    )
    names = ", ".join(f"%{name}" for name in operands)
    program = Program(
        f"%fused (x: f32[]) -> f32[] {{\n{fused}}}\n\n"
        f"ENTRY %main (t: f32[]) -> f32[] {{\n{given}"
        f"  %f = {result} fusion({names}), kind=kLoop, calls=%fused\n}}\n"
    )
    return hbm_bytes(program, program.computations["main"]["f"], "main")


STACKED = (
    f"  %p0 = {STACK} parameter(0)\n  %p1 = {ROW} parameter(1)\n  %i = s32[] constant(3)\n"
    f"  %made = {ROW} tanh(%p1)\n"
)
UPDATED = "dynamic-update-slice(%p0, %made, %i, %i)"


def test_an_array_that_is_updated_in_place_counts_its_update() -> None:
    fused = f"{STACKED}  ROOT %u = {STACK} {UPDATED}\n"
    assert moved(fused, STACK, {"a": STACK, "b": ROW}) == 2 * ROW_BYTES


def test_one_result_of_several_may_be_updated_in_place() -> None:
    fused = (
        f"{STACKED}  %u = {STACK} {UPDATED}\n  %b = {STACK} bitcast(%u)\n"
        f"  ROOT %r = ({STACK}, {ROW}) tuple(%b, %made)\n"
    )
    assert moved(fused, f"({STACK}, {ROW})", {"a": STACK, "b": ROW}) == 3 * ROW_BYTES


def test_an_array_that_is_sliced_counts_its_slices() -> None:
    fused = (
        f"  %p0 = {STACK} parameter(0)\n  %b = f32[64,8,1] bitcast(%p0)\n  %i = s32[] constant(3)\n"
        f"  %one = {ROW} dynamic-slice(%b, %i), dynamic_slice_sizes={{1,8}}\n"
        f"  ROOT %r = {ROW} tanh(%one)\n"
    )
    assert moved(fused, ROW, {"a": STACK}) == 2 * ROW_BYTES


def test_an_array_that_is_also_read_whole_counts_whole() -> None:
    fused = (
        f"  %p0 = {STACK} parameter(0)\n  %i = s32[] constant(3)\n  %all = f32[1] reduce(%p0, %i)\n"
        f"  %one = {ROW} dynamic-slice(%p0, %i), dynamic_slice_sizes={{1,8}}\n"
        f"  ROOT %r = {ROW} multiply(%one, %all)\n"
    )
    assert moved(fused, ROW, {"a": STACK}) == ROW_BYTES + STACK_BYTES


def test_an_array_that_is_made_in_the_fusion_is_written_whole() -> None:
    fused = (
        f"  %p0 = {ROW} parameter(0)\n  %i = s32[] constant(3)\n  %none = {STACK} broadcast(%i)\n"
        f"  ROOT %u = {STACK} dynamic-update-slice(%none, %p0, %i, %i)\n"
    )
    assert moved(fused, STACK, {"a": ROW}) == ROW_BYTES + STACK_BYTES


def test_a_fusion_in_a_fusion_is_looked_into() -> None:
    inner = (
        f"  %q0 = {STACK} parameter(0)\n  %j = s32[] constant(1)\n"
        f"  ROOT %s = {ROW} dynamic-slice(%q0, %j), dynamic_slice_sizes={{1,8}}\n}}\n\n"
    )
    fused = (
        f"  %p0 = {STACK} parameter(0)\n  %one = {ROW} fusion(%p0), kind=kLoop, calls=%inner\n"
        f"  ROOT %r = {ROW} tanh(%one)\n}}\n\n%inner (y: f32[]) -> f32[] {{\n{inner}"
    )
    assert moved(fused.removesuffix("}\n\n"), ROW, {"a": STACK}) == 2 * ROW_BYTES


@pytest.mark.parametrize(
    ("line", "bytes_moved"),
    [
        (f"{STACK} dynamic-update-slice(%a, %b, %i, %i)", 2 * ROW_BYTES),
        (f"{ROW} dynamic-slice(%a, %i, %i)", 2 * ROW_BYTES),
        (f"{STACK} add(%a, %a2)", 3 * STACK_BYTES),
        (f"{ON_CHIP} copy(%a)", STACK_BYTES),
    ],
)
def test_an_operation_alone(line: str, bytes_moved: int) -> None:
    program = Program(
        "ENTRY %main (t: f32[]) -> f32[] {\n  %i = s32[]{:S(2)} constant(3)\n"
        f"  %a = {STACK} get-tuple-element(%t)\n  %a2 = {STACK} get-tuple-element(%t)\n"
        f"  %b = {ROW} get-tuple-element(%t)\n  %x = {line}\n}}\n"
    )
    assert hbm_bytes(program, program.computations["main"]["x"], "main") == bytes_moved
