"""Collectives are read from a compiled program with their bytes, axes, loops and fusions."""

import pytest

from hyla_lm.tools.plan.collectives import Collective, find_collectives
from hyla_lm.tools.plan.hlo import Program

MESH = {"data": 2, "fsdp": 4, "model": 1}
HEAD = "HloModule jit_train_step\n\n%add (a: f32[], b: f32[]) -> f32[] {\n"
HEAD += "  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n\n"


def program(*lines: str, before: str = "") -> Program:
    body = "".join(f"  {line}\n" for line in ("%p = f32[8,128]{1,0:T(8,128)} parameter(0)", *lines))
    return Program(f"{HEAD}{before}ENTRY %main (p: f32[8,128]) -> f32[8,128] {{\n{body}}}\n")


def only(found: list[Collective]) -> Collective:
    (collective,) = found
    return collective


def test_an_all_reduce_over_all_chips() -> None:
    line = (
        "%all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[16]{0:T(256)(128)(2,1)S(1)}) "
        "all-reduce(%p, %q), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add, "
        'metadata={op_name="jit(train_step)/reduce_sum"}'
    )
    found = only(find_collectives(program(line), MESH))
    assert (found.kind, found.bytes, found.times) == ("all-reduce", 8 * 128 * 4 + 16 * 2, 1)
    assert (found.axes, found.group_size, found.is_async) == (("data", "fsdp"), 8, False)
    assert found.shapes == ((8, 128), (16,))
    assert found.bytes_sent() == pytest.approx(2 * 7 / 8 * found.bytes)
    assert found.seconds(100e9) == pytest.approx(2 * 7 / 8 * found.bytes / 100e9)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("fsdp",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("data",)),
        ("[2,4]<=[8]", ("fsdp",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_1'}", ("fsdp",)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", ("data", "fsdp")),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", ("fsdp",)),
        ("mesh['axis_0'=8] {'axis_0':(1)2}", ("data",)),
        ("{}", ("data", "fsdp")),
    ],
)
def test_every_way_of_writing_groups(groups: str, axes: tuple[str, ...]) -> None:
    line = f"%x = f32[8,128]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    assert only(find_collectives(program(line), MESH)).axes == axes


def test_an_asynchronous_gather_counts_its_result_once() -> None:
    start = (
        "%all-gather-start.1 = (f32[2,128]{1,0}, f32[8,128]{1,0}) all-gather-start(%p), "
        "replica_groups=[2,4]<=[8], dimensions={0}"
    )
    done = "%all-gather-done.1 = f32[8,128]{1,0} all-gather-done(%all-gather-start.1)"
    found = only(find_collectives(program(start, done), MESH))
    assert (found.kind, found.bytes, found.is_async) == ("all-gather", 8 * 128 * 4, True)
    assert found.bytes_sent() == 3 / 4 * found.bytes


def test_a_reduce_scatter_counts_what_goes_in() -> None:
    line = (
        "%x = f32[2,128]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], dimensions={0}, "
        "to_apply=%add"
    )
    assert only(find_collectives(program(line), MESH)).bytes == 8 * 128 * 4


def test_a_reduce_scatter_inside_a_fusion() -> None:
    fused = (
        "%all-reduce-scatter.1 (x: f32[8,128]) -> f32[2,128] {\n"
        "  %x = f32[8,128]{1,0} parameter(0)\n"
        "  %r = f32[8,128]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add\n"
        "  ROOT %s = f32[2,128]{1,0} dynamic-slice(%r, %i, %z), dynamic_slice_sizes={2,128}\n}\n\n"
    )
    line = "%fusion.9 = f32[2,128]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1"
    found = only(find_collectives(program(line, before=fused), MESH))
    assert (found.kind, found.bytes) == ("reduce-scatter", 8 * 128 * 4)


def test_a_gather_that_goes_on_under_other_work_counts_once() -> None:
    pieces = "".join(
        f"%{name} (x: f32[2,128]) -> f32[8,128] {{\n"
        "  %x = f32[2,128]{1,0} parameter(0)\n"
        "  ROOT %g = f32[8,128]{1,0} all-gather(%x), channel_id=15, replica_groups=[2,4]<=[8], "
        'dimensions={0}, frontend_attributes={chain_id="3"}\n}\n\n'
        for name in ("async.start", "async.fusion", "async.done")
    )
    lines = (
        "%async-collective-start = f32[8,128] fusion(%p), kind=kCustom, calls=%async.start",
        "%fusion.6 = f32[8,128] fusion(%p), kind=kOutput, calls=%async.fusion",
        "%async-collective-done = f32[8,128] fusion(%p), kind=kCustom, calls=%async.done",
    )
    found = only(find_collectives(program(*lines, before=pieces), MESH))
    assert (found.kind, found.is_async, found.bytes) == ("all-gather", True, 8 * 128 * 4)


def test_a_permute_between_neighbours() -> None:
    line = (
        "%x = (f32[8,128]{1,0}, f32[8,128]{1,0}, u32[], u32[]) collective-permute-start(%p), "
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    )
    found = only(find_collectives(program(line), MESH))
    assert (found.kind, found.axes, found.bytes) == ("collective-permute", ("fsdp",), 8 * 128 * 4)


LOOP = """%condition (s: (s32[], f32[8,128])) -> pred[] {
  %s = (s32[], f32[8,128]) parameter(0)
  %limit = s32[]{:T(128)} constant(6)
  %i = s32[] get-tuple-element(%s), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%body (t: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {
  %t = (s32[], f32[8,128]) parameter(0)
  %j = s32[] get-tuple-element(%t), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %y = f32[8,128] get-tuple-element(%t), index=1
  %z = f32[8,128]{1,0} all-reduce(%y), replica_groups=[1,8]<=[8], to_apply=%add
  ROOT %u = (s32[], f32[8,128]) tuple(%next, %z)
}

"""
WHILE = (
    "%zero = s32[] constant(0)",
    "%t = (s32[], f32[8,128]) tuple(%zero, %p)",
    "%w = (s32[], f32[8,128]) while(%t), condition=%condition, body=%body",
)


def test_a_collective_in_a_loop_runs_as_often_as_the_loop() -> None:
    found = only(find_collectives(program(*WHILE, before=LOOP), MESH))
    assert found.times == 6
    assert found.bytes_sent() == 6 * 2 * 7 / 8 * 8 * 128 * 4


def test_a_loop_whose_trips_are_not_known_is_noted() -> None:
    unknown = LOOP.replace("constant(6)", "infeed()")
    hlo = program(*WHILE, before=unknown)
    assert only(find_collectives(hlo, MESH)).times == 1
    assert "trips not known" in next(iter(hlo.notes))


def test_groups_of_one_chip_cross_nothing() -> None:
    line = "%x = f32[8,128]{1,0} all-reduce(%p), replica_groups=[8,1]<=[8], to_apply=%add"
    assert find_collectives(program(line), MESH) == []
