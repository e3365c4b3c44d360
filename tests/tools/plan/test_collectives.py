"""Collectives are read from a compiled program with their bytes, axes, loops and purpose."""

import pytest

from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import (
    ACTIVATIONS,
    GRADIENTS,
    NUMBERS,
    PARAMETERS,
    TABLE,
    TABLE_GRADIENT,
    Collective,
    find_collectives,
)

MESH = {"data": 2, "fsdp": 4, "model": 1}
WHOLE = 8 * 128 * 4
ADD = "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
ADD += "  %b = f32[] parameter(1)\n  ROOT %c = f32[] add(%a, %b)\n}\n\n"


def collectives(*lines: str, before: str = "") -> list[Collective]:
    body = "".join(f"  {line}\n" for line in ("%p = f32[8,128]{1,0:T(8,128)} parameter(0)", *lines))
    entry = f"ENTRY %main (p: f32[8,128]) -> f32[8,128] {{\n{body}}}\n"
    return find_collectives(Program(ADD + before + entry), MESH)


def test_an_all_reduce_over_all_chips() -> None:
    line = (
        "%all-reduce.1 = (f32[8,128]{1,0:T(8,128)}, bf16[16]{0:T(256)(128)(2,1)S(1)}) "
        "all-reduce(%p, %q), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add, "
        'metadata={op_name="jit(train_step)/reduce_sum"}'
    )
    [x] = collectives(line)
    assert (x.kind, x.bytes, x.times) == ("all-reduce", WHOLE + 16 * 2, 1)
    assert (x.axes, x.group_size, x.is_async) == (("data", "fsdp"), 8, False)
    assert x.shapes == ((8, 128), (16,))
    assert x.bytes_sent() == pytest.approx(2 * 7 / 8 * x.bytes)
    assert x.seconds(Slice("v5e:2x4")) == pytest.approx(x.bytes_sent() / 100e9)
    assert x.seconds(Slice("v5e:16x16")) == pytest.approx(x.bytes_sent() / 200e9)


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}", ("data", "fsdp")),
        ("mesh['axis_0'=8] {'axis_0':(2)4}", ("fsdp",)),
        ("{}", ("data", "fsdp")),
    ],
)
def test_every_way_of_writing_groups(groups: str, axes: tuple[str, ...]) -> None:
    [x] = collectives(
        f"%x = f32[8,128]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    )
    assert x.axes == axes


FUSED = (
    "%all-reduce-scatter.1 (x: f32[8,128]) -> f32[2,128] {\n"
    "  %x = f32[8,128]{1,0} parameter(0)\n"
    "  %r = f32[8,128]{1,0} all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add\n"
    "  ROOT %s = f32[2,128]{1,0} dynamic-slice(%r, %i, %z), dynamic_slice_sizes={2,128}\n}\n\n"
)
# A gather that runs beside a fusion: one chain in three computations.
CHAINED = "".join(
    f"%{name} (x: f32[2,128]) -> f32[8,128] {{\n  %x = f32[2,128]{{1,0}} parameter(0)\n"
    "  ROOT %g = f32[8,128]{1,0} all-gather(%x), channel_id=15, replica_groups=[2,4]<=[8], "
    'dimensions={0}, frontend_attributes={chain_id="3"}\n}\n\n'
    for name in ("async.start", "async.fusion", "async.done")
)


@pytest.mark.parametrize(
    ("before", "lines", "expected"),
    [
        (
            "",
            (
                "%g = (f32[2,128]{1,0}, f32[8,128]{1,0}) all-gather-start(%p), "
                "replica_groups=[2,4]<=[8], dimensions={0}",
                "%done = f32[8,128]{1,0} all-gather-done(%g)",
            ),
            ("all-gather", WHOLE * 3 / 4, True),
        ),
        (
            "",
            ("%x = f32[2,128]{1,0} reduce-scatter(%p), replica_groups=[2,4]<=[8], to_apply=%add",),
            ("reduce-scatter", WHOLE * 3 / 4, False),
        ),
        (
            FUSED,
            ("%f = f32[2,128]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter.1",),
            ("reduce-scatter", WHOLE * 3 / 4, False),
        ),
        (
            CHAINED,
            (
                "%async-collective-start = f32[8,128] fusion(%p), kind=kCustom, calls=%async.start",
                "%fusion.6 = f32[8,128] fusion(%p), kind=kOutput, calls=%async.fusion",
                "%async-collective-done = f32[8,128] fusion(%p), kind=kCustom, calls=%async.done",
            ),
            ("all-gather", WHOLE * 3 / 4, True),
        ),
        (
            "",
            (
                "%x = (f32[8,128]{1,0}, f32[8,128]{1,0}, u32[], u32[]) collective-permute-start"
                "(%p), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
            ),
            ("collective-permute", WHOLE, True),
        ),
    ],
)
def test_each_collective_counts_once_per_run(
    before: str, lines: tuple[str, ...], expected: tuple[str, float, bool]
) -> None:
    [x] = collectives(*lines, before=before)
    assert (x.kind, x.bytes_sent(), x.is_async) == expected
    assert x.axes == ("fsdp",)


def test_a_sum_between_slices_goes_through_the_hosts() -> None:
    """Four slices: each chip sends 2 x 3/4 of its 8.2 MB at its share of two cards of 100 Gbit/s.

    On v5e eight chips share them: 25 GB/s / 8.
    """
    attributes = "channel_id=4, is_host_transfer=true, "
    attributes += 'frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.18"}'
    hlo = Program(
        "ENTRY %main (p: f32[8]) -> f32[8] {\n"
        "  %send.1 = (f32[2000,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%b, %a), "
        f"{attributes}\n  %send-done.1 = token[] send-done(%send.1), {attributes}\n}}\n"
    )
    [x] = find_collectives(hlo, {"replica": 4, "data": 2}, slices=4)
    assert (x.kind, x.axes, x.group_size) == ("all-reduce", ("replica",), 4)
    assert x.bytes == 2000 * 8 * 128 * 4
    assert x.seconds(Slice("v5e:2x2", 4)) == pytest.approx(1.5 * 8_192_000 / 3.125e9)


BODY = "jit(train_step)/while/body/closed_call"
FORWARD = f"{BODY}/jvp(hidden)/blocks/block_0/attention/key/dot_general"
BACKWARD = FORWARD.replace("jvp(hidden)", "transpose(jvp(hidden))")
EMBEDDING = f"{BODY}/jvp(hidden)/embed/gather"
ROWS = 32000


@pytest.mark.parametrize(
    ("kind", "axes", "shapes", "op_name", "purpose"),
    [
        ("all-gather", "fsdp", [(512, 8, 64)], FORWARD, PARAMETERS),
        ("all-gather", "data", [(512, 2048)], "", GRADIENTS),
        ("collective-permute", "fsdp", [(64, 8, 64)], FORWARD, PARAMETERS),
        ("collective-permute", "fsdp", [(64, 8, 64)], BACKWARD, GRADIENTS),
        ("all-gather", "fsdp", [(4000, 4096)], EMBEDDING, TABLE),
        ("reduce-scatter", "fsdp", [(ROWS // 8, 512)], "", TABLE_GRADIENT),
        ("all-gather", "model", [(16, 640, 512)], "", ACTIVATIONS),
        ("all-reduce", "data fsdp", [(), (1,)], "", NUMBERS),
    ],
)
def test_what_a_collective_is_for(
    kind: str, axes: str, shapes: list[tuple[int, ...]], op_name: str, purpose: str
) -> None:
    x = Collective("x", kind, 4096, 1, 8, tuple(axes.split()), False, False, tuple(shapes), op_name)
    assert x.purpose(ROWS) == purpose
    if purpose in (PARAMETERS, GRADIENTS, NUMBERS):
        assert x.purpose(None) == purpose, "a task without a vocabulary has no table"
