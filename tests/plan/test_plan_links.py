"""What collectives are for, how far they go, and what crosses between slices."""

from dataclasses import replace

import pytest

from hyla_lm.attention.chips import CHIPS, V5E, V5P, V6E
from hyla_lm.tools.plan.collectives import Collective, find_collectives
from hyla_lm.tools.plan.compile import Memory
from hyla_lm.tools.plan.hlo import Program
from hyla_lm.tools.plan.links import Links, assumptions, links_of
from hyla_lm.tools.plan.predict import StepTime, step_time
from hyla_lm.tools.plan.purpose import (
    ACTIVATIONS,
    GRADIENTS,
    NUMBERS,
    PARAMETERS,
    TABLE,
    TABLE_GRADIENT,
    purpose,
)
from hyla_lm.tools.plan.topology import Slice

BODY = "jit(train_step)/while/body/closed_call"
KEY = "blocks/block_0/attention/key/dot_general"
ROWS = 32000


def collective(
    kind: str, axes: str, *shapes: tuple[int, ...], op_name: str = "", group_size: int = 8
) -> Collective:
    return Collective(
        "x", kind, 4096, 1, group_size, tuple(axes.split()), 6, False, False, shapes, op_name
    )


@pytest.mark.parametrize(
    ("found", "meaning"),
    [
        (
            collective("all-gather", "fsdp", (512, 8, 64), op_name=f"{BODY}/jvp(hidden)/{KEY}"),
            PARAMETERS,
        ),
        (collective("all-gather", "fsdp", (512, 2048), (512,)), PARAMETERS),
        (collective("reduce-scatter", "fsdp", (64, 2048)), GRADIENTS),
        (collective("all-reduce", "data", (512, 2048), (ROWS, 512)), GRADIENTS),
        (
            collective(
                "collective-permute",
                "fsdp",
                (64, 8, 64),
                op_name=f"{BODY}/transpose(jvp(hidden))/{KEY}",
            ),
            GRADIENTS,
        ),
        (
            collective(
                "collective-permute", "fsdp", (64, 8, 64), op_name=f"{BODY}/jvp(hidden)/{KEY}"
            ),
            PARAMETERS,
        ),
        (collective("all-gather", "data", (512, 2048)), GRADIENTS),
        (
            collective(
                "all-gather", "fsdp", (4000, 4096), op_name=f"{BODY}/jvp(hidden)/embed/gather"
            ),
            TABLE,
        ),
        (collective("all-gather", "fsdp", (ROWS, 512)), TABLE),
        (collective("reduce-scatter", "fsdp", (ROWS // 8, 512)), TABLE_GRADIENT),
        (collective("all-reduce", "data", (ROWS, 512)), TABLE_GRADIENT),
        (collective("all-gather", "fsdp", (ROWS // 8, 2048)), PARAMETERS),  # an equal width
        (collective("all-gather", "model", (16, 640, 512)), ACTIVATIONS),
        (collective("all-reduce", "data fsdp", (), (1,)), NUMBERS),
        (collective("all-reduce", "model", ()), NUMBERS),
    ],
)
def test_what_a_collective_is_for(found: Collective, meaning: str) -> None:
    assert purpose(found, ROWS) == meaning


def test_a_task_without_a_vocabulary_has_no_table() -> None:
    assert purpose(collective("all-reduce", "data", (512, 2048)), None) == GRADIENTS


GRID = [(0, x, y, 0) for x in range(4) for y in range(4)]


def of_grid(groups: str) -> Collective:
    line = f"  %r = f32[256]{{0}} all-reduce(%p), replica_groups={groups}, to_apply=%add\n"
    hlo = Program(f"ENTRY %main (p: f32[256]) -> f32[256] {{\n{line}}}\n")
    (found,) = find_collectives(hlo, {"data": 4, "model": 4}, GRID)
    return found


@pytest.mark.parametrize(
    ("groups", "hops"),
    [
        ("[1,16]<=[16]", 3 + 3),
        ("[4,4]<=[16]", 3),
        ("{{0,1,4,5},{2,3,6,7},{8,9,12,13},{10,11,14,15}}", 1 + 1),
        ("{{0,5},{1,15},{2,3},{4,6},{7,8},{9,10},{11,12},{13,14}}", 3 + 2),  # (0, 1) to (3, 3)
    ],
)
def test_hops_are_those_of_the_widest_group(groups: str, hops: int) -> None:
    assert of_grid(groups).hops == hops


def test_latency_is_a_hop_there_and_back() -> None:
    links = Links(100e9, 1e9, hop_seconds=1e-6, exchange_seconds=50e-6)
    assert links.latency(of_grid("[1,16]<=[16]")) == pytest.approx(2 * 6e-6)
    gather = replace(collective("all-gather", "fsdp", (8,)), times=10)
    assert links.latency(gather) == pytest.approx(10 * 6e-6)


SEND = (
    "  %send.1 = (f32[2000,8,128]{2,1,0:T(8,128)}, u32[], token[]) send(%b, %a), channel_id=40, "
    'is_host_transfer=true, frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.18_0"}\n'
    "  %send-done.1 = token[] send-done(%send.1), channel_id=40, is_host_transfer=true, "
    'frontend_attributes={_xla_host_transfer_rendezvous="all-reduce.18_0"}\n'
)


def test_a_sum_between_slices_goes_through_the_hosts() -> None:
    """Four slices: each chip sends 2 x 3/4 of its 8.2 MB at its share of two cards of 100 Gbit/s.

    On v5e eight chips share them: 25 GB/s / 8.
    """
    hlo = Program(f"ENTRY %main (p: f32[8]) -> f32[8] {{\n{SEND}}}\n")
    places = [(chip // 2, chip % 2, 0, 0) for chip in range(8)]
    (found,) = find_collectives(hlo, {"replica": 4, "data": 2}, places)
    assert (found.kind, found.axes, found.group_size) == ("all-reduce", ("replica",), 4)
    assert found.bytes == 2000 * 8 * 128 * 4
    links = links_of(Slice("v5e:2x2", 4))
    assert links.seconds(found) == pytest.approx(1.5 * 8_192_000 / 3.125e9)
    assert links.latency(found) == pytest.approx(2 * 50e-6)


def test_latency_is_in_the_longest_step_alone() -> None:
    memory = Memory(0, 0, 0, 0, 0)
    small = collective("all-reduce", "data", ())
    times = step_time([], [small], memory, 1.0, Slice("v5e:4x4"))
    assert times.latency == pytest.approx(12e-6)
    assert times.collectives == pytest.approx(2 * 7 / 8 * 4096 / 100e9)
    assert times.shortest == pytest.approx(times.collectives)
    assert times.longest == pytest.approx(times.collectives + 12e-6)
    assert StepTime(3.0, 2.0, 1.0, 0.5, 0.1).longest == 4.5


def test_assumptions_name_the_network_only_between_slices() -> None:
    assert len(assumptions(Slice("v5e:4x4"))) == 1
    (_, network) = assumptions(Slice("v6e:2x4", 2))
    assert "12.5 GB/s" in network and "100 GB/s a host of 8 chips" in network


@pytest.mark.parametrize(
    ("name", "chips", "is_torus"),
    [
        ("v5e:16x16", 256, True),
        ("v5e:8x16", 128, False),
        ("v6e:2x4", 8, False),
        ("v5p:2x4x4", 32, False),
        ("v5p:4x4x8", 128, True),
    ],
)
def test_slices_of_every_generation(name: str, chips: int, is_torus: bool) -> None:
    assert (Slice(name).chips, Slice(name).is_torus) == (chips, is_torus)
    assert Slice(name, 2).chips == 2 * chips
    assert Slice(name).chip.generation == name.partition(":")[0]


def test_peaks_follow_from_matrix_units_and_clock() -> None:
    """Four units a core: a multiply-add counts 2. On v6e units count as four of 256 x 256."""
    for chip in (V5E, V5P, V6E):
        products = chip.cores * 4 * chip.matrix_unit**2
        assert 2 * products * chip.clock_hz == pytest.approx(chip.peak_flops, rel=0.01)


def test_a_kernel_leaves_the_compiler_an_eighth_of_vmem() -> None:
    assert CHIPS["v5e"].kernel_vmem_bytes == 112 * 2**20
    assert CHIPS["v5p"].kernel_vmem_bytes == 56 * 2**20
