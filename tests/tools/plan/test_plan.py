"""What hyla-lm plan computes from a slice, its chips and a compiled step."""

import pytest

from hyla_lm.tools.cycles.operations import PartCycles
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.compile import Memory, parse_refusal
from hyla_lm.tools.plan.plan import consequences, step_time


@pytest.mark.parametrize(
    ("name", "chips", "is_torus"),
    [
        ("v5e:1x1", 1, False),
        ("v5e:16x16", 256, True),
        ("v5p:2x4x4", 32, False),
        ("v5p:4x4x8", 128, True),
    ],
)
def test_slices_of_every_generation(name: str, chips: int, is_torus: bool) -> None:
    """Where links close no rings, a chip sends at half of their bandwidth."""
    one, two = Slice(name), Slice(name, 2)
    assert (one.chips, two.chips) == (chips, 2 * chips)
    assert one.chip.generation == name.partition(":")[0]
    assert one.ring_bytes_per_second * (1 if is_torus else 2) == one.chip.ici_bytes_per_second


def test_the_compilers_sentence_about_memory_is_read() -> None:
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 21.04G of 15.75G hbm. Exceeded hbm capacity by 5.29G."
    )
    assert parse_refusal(message) == (21.04 * 2**30, 15.75 * 2**30)
    other = (
        "Ran out of memory on HBM, the total memory required for HLO temporaries (40.04G) "
        "exceeds available HBM (15.75G)"
    )
    assert parse_refusal(other) == (40.04 * 2**30, 15.75 * 2**30)
    assert parse_refusal("INTERNAL: Mosaic failed") is None


def test_the_range_of_a_step_and_what_follows_from_it() -> None:
    """30 and 60 million cycles at 1.5 GHz; 16 MB around a ring of 16 at 100 GB/s."""
    topology = Slice("v5e:4x4")
    x = Collective("x", "all-gather", 16 * 10**6, 100, 16, ("data",), False, False, (), "")
    memory = Memory(819 * 10**4, 819 * 10**4, 0, 0, 0)
    times = step_time([PartCycles("norms", 60, 30)] * 10**6, [x], memory, 1.0, topology)
    assert (times.estimated_compute, times.counted_compute) == pytest.approx((0.040, 0.020))
    assert times.collectives == pytest.approx(100 * 15 * 10**6 / 100e9)
    assert times.bound == pytest.approx(2 * 2 * 10**-5)  # the state is read and written
    assert (times.shortest, times.longest) == pytest.approx((0.020, 0.055))
    plan = {"tokens_per_step": 1000, "steps": 3600, "flops_per_token": 197e12}
    made = consequences(0.020, plan, topology)
    assert made == pytest.approx(
        {
            "step_seconds": 0.020,
            "tokens_per_second": 50_000,
            "tokens_per_second_per_chip": 3125,
            "mfu": 3125,
            "run_hours": 0.020,
            "chip_hours": 0.32,
        }
    )
