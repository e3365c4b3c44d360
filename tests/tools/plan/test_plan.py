"""What hyla-lm plan computes from a slice, its chips and a compiled step."""

import pytest

from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.compile import Memory, parse_refusal
from hyla_lm.tools.plan.plan import step_seconds


@pytest.mark.parametrize(
    ("name", "chips", "is_torus"),
    [("v5e:1x1", 1, False), ("v6e:16x16", 256, True), ("v5p:2x4x4", 32, False)],
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


def test_the_range_of_a_step() -> None:
    """30 and 60 million cycles at 1.5 GHz; 16 MB around a ring of 16 at 100 GB/s."""
    topology = Slice("v5e:4x4")
    x = Collective("x", "all-gather", 16 * 10**6, 100, 16, ("data",), False, False, (), "")
    memory = Memory(819 * 10**4, 819 * 10**4, 0, 0, 0)
    cycles = 60 * 10**6, 30 * 10**6
    assert step_seconds(cycles, [x], memory, 1.0, topology) == pytest.approx((0.020, 0.055))
    assert step_seconds(cycles, [], memory, 197e12, topology) == pytest.approx((1, 1)), "the peak"
    calm = step_seconds((0, 0), [], memory, 1.0, topology)
    assert calm == pytest.approx((4e-5, 4e-5)), "the state is read and written"
