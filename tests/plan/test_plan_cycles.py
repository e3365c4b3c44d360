"""Cycles go to the part of the model they come from; parts sum to the whole; loops count trips."""

from pathlib import Path

import pytest

from hyla_lm.attention.chips import V5E
from hyla_lm.tools.cycles.cycles import by_part, operations, part_of, spread
from hyla_lm.tools.cycles.dumps import Dumps
from hyla_lm.tools.plan.hlo import Program

STEP = "jit(train_step)/while/body/closed_call"


@pytest.mark.parametrize(
    ("op_name", "part"),
    [
        (f"{STEP}/jvp(Decoder.hidden)/embed/gather", "embedding"),
        (f"{STEP}/transpose(jvp(Decoder.hidden))/embed/scatter-add", "embedding"),
        (f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/attention/query/dot_general", "projections"),
        (f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/attention/shard_map/mul", "attention"),
        (f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/feedforward/up/dot_general", "feed-forward"),
        (f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/feedforward_norm/mul", "norms"),
        (f"{STEP}/jvp(Decoder.hidden)/final_norm/mul", "norms"),
        (f"{STEP}/jvp()/while/body/closed_call/jvp(Decoder.logits)/dot", "loss and logits"),
        (f"{STEP}/jvp(loss)/while/body/closed_call/jvp(head)/mul", "loss and logits"),
        (f"{STEP}/jvp()/reduce_sum", "loss and logits"),
        ("jit(train_step)/sqrt", "optimizer"),
        ("broadcast.95", "other"),
        ("", "other"),
    ],
)
def test_an_operation_belongs_to_the_part_that_made_it(op_name: str, part: str) -> None:
    assert part_of(op_name) == part


def fusion(name: str, cycles: int, op_name: str, result: str = "f32[8]{0:T(256)S(1)}") -> str:
    return (
        f'  %{name} = {result} fusion(%p), kind=kLoop, metadata={{op_name="{op_name}"}}, '
        f'backend_config={{"estimated_cycles":"{cycles}"}}\n'
    )


LOOP = (
    "%cond (s: (s32[])) -> pred[] {\n  %s = (s32[]) parameter(0)\n"
    "  %k = s32[]{:T(128)} constant(4)\n  %i = s32[] get-tuple-element(%s), index=0\n"
    "  ROOT %less = pred[] compare(%i, %k), direction=LT\n}\n\n"
    "%body (t: (s32[])) -> (s32[]) {\n  %t = (s32[]) parameter(0)\n"
    + fusion("looped", 100, f"{STEP}/jvp()/while/body/mul")
    + "  %j = s32[] get-tuple-element(%t), index=0\n  %one = s32[] constant(1)\n"
    "  %next = s32[] add(%j, %one)\n  ROOT %u = (s32[]) tuple(%next)\n}\n\n"
)
MAIN = (
    "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0:T(256)S(1)} parameter(0)\n"
    + fusion("up", 70, f"{STEP}/jvp(Decoder.hidden)/blocks/block_0/feedforward/up/dot_general")
    + fusion("adam", 30, "jit(train_step)/add", "f32[1048576]{0:T(256)}")
    + fusion("none", 1 << 63, "jit(train_step)/sqrt")
    + "  %zero = s32[] constant(0)\n  %t = (s32[]) tuple(%zero)\n"
    "  %w = (s32[]) while(%t), condition=%cond, body=%body\n"
    '  %hyla = f32[8]{0:T(256)S(1)} custom-call(%p), custom_call_target="tpu_custom_call", '
    'metadata={op_name="jvp()/blocks/block_0/attention/shard_map/hyla_forward/pallas_call"}\n'
    "  %r = f32[8]{0} all-reduce(%p), replica_groups={}, to_apply=%add\n}\n"
)
STRAIGHT = "".join(f"  {number:#x} : {{ }}\n" for number in range(50))


@pytest.fixture
def dumps(tmp_path: Path) -> Dumps:
    (tmp_path / "1-hyla-01-packed-bundles-post-ra.txt").write_text(STRAIGHT.replace("0x0 ", "0 "))
    (tmp_path / "2-up-01-packed-bundles-post-ra.txt").write_text("   0 : { }\n")
    (tmp_path / "3-TLP-00-deduplication-map.txt").write_text("key:up\nordinal:1\n  up\n  adam\n")
    return Dumps(tmp_path)


def test_parts_sum_to_the_whole_and_loops_count_their_trips(dumps: Dumps) -> None:
    found = operations(Program(LOOP + MAIN), dumps, V5E)
    parts = {part.part: part for part in by_part(found)}
    assert parts["loss and logits"].estimated == 4 * 100
    assert parts["feed-forward"].estimated == 70
    assert parts["attention kernel"].estimated == 50
    assert parts["optimizer"].estimated == 30
    assert sum(x.times * x.estimated for x in found) == sum(p.estimated for p in parts.values())
    assert sum(x.times * x.counted_or_estimated for x in found) == sum(
        p.counted for p in parts.values()
    )


BRANCHES = (
    "%no (n: f32[8]) -> f32[8] {\n  %n = f32[8]{0} parameter(0)\n}\n\n"
    "%yes (y: f32[8]) -> f32[8] {\n  %y = f32[8]{0} parameter(0)\n"
    + fusion("dear", 500, "jit(train_step)/mul")
    + "}\n\n"
)


@pytest.mark.parametrize(("scope", "cycles"), [("rarely", 0), ("often", 500)])
def test_a_branch_that_is_called_rare_is_not_counted(scope: str, cycles: int, dumps: Dumps) -> None:
    program = Program(
        BRANCHES + "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        "  %c = f32[8]{0} conditional(%i, %p, %p), branch_computations={%yes, %no}, "
        f'metadata={{op_name="jit(train_step)/{scope}/cond"}}\n}}\n'
    )
    assert sum(x.times * x.estimated for x in operations(program, dumps, V5E)) == cycles
    which = "shortest" if scope == "rarely" else "longest"
    assert [which in note for note in program.notes] == [True]


def test_counted_is_the_longer_of_bundles_and_traffic(dumps: Dumps) -> None:
    found = {x.name: x for x in operations(Program(LOOP + MAIN), dumps, V5E)}
    assert found["up"].counted == 1  # everything lies on the chip
    assert found["adam"].counted == pytest.approx(2**22 / 819e9 * 1.5e9, abs=1)
    assert found["looped"].counted is None
    assert "r" not in found  # the links are counted elsewhere


def test_the_spread_is_of_operations_with_both_figures(dumps: Dumps) -> None:
    found = operations(Program(LOOP + MAIN), dumps, V5E)
    measured = spread(found)
    assert measured is not None
    assert measured.operations == 2
    assert measured.ratio == pytest.approx((1 + found[1].hbm_cycles) / 100)
