"""What hyla-lm plan computes from a slice, its chips and a compiled step."""

import pytest

from hyla_lm.attention.chips import CHIPS
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.compile import Memory, parse_refusal
from hyla_lm.tools.plan.measured import factors, measured_runs
from hyla_lm.tools.plan.plan import predict, roofline


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


def test_the_roofline_is_the_longest_of_computing_the_state_and_the_links() -> None:
    """On 16 chips; 30 million cycles of kernels take 20 ms at 1.5 GHz, their FLOPs 10 ms."""
    topology = Slice("v5e:4x4")
    peak = 16 * 197e12
    memory = Memory(819 * 10**4, 819 * 10**4, 0, 0, 0)
    bounds = roofline(0.05 * peak, 0.01 * peak, 30 * 10**6, memory, 0.003, topology)
    assert bounds == pytest.approx({"compute": 0.06, "state": 4e-5, "links": 0.003})
    uncounted = roofline(0.05 * peak, 0.01 * peak, 0, memory, 0.003, topology)
    assert uncounted["compute"] == pytest.approx(0.05)
    for name in bounds:
        predicted = predict(bounds | {name: 1.0}, 1000, 0.5 * peak, 3600, topology)
        ends = [predicted[end]["step_seconds"] for end in ("shortest", "longest")]
        assert ends == pytest.approx(factors())
        assert predicted["longest"]["mfu"] == pytest.approx(0.5 / ends[1])
        assert predicted["longest"]["chip_hours"] == pytest.approx(16 * ends[1])


def test_the_range_is_that_of_what_was_measured_on_the_chips_of_plans() -> None:
    """MFU by hand: 6 FLOPs for each weight of a product, and half of the pairs of attention."""
    used = []
    for run in measured_runs():
        m, length, chip = run["model"], run["sequence_length"], run["chip"]
        attention = 2 * m["model_dim"] * m["head_dim"] * (m["num_heads"] + m["num_kv_heads"])
        products = {"swiglu": 3, "gelu": 2}[m["feedforward"]]
        weights = m["num_layers"] * (attention + products * m["model_dim"] * m["mlp_dim"])
        pairs = m["num_layers"] * m["num_heads"] * m["head_dim"] * (length + 1)
        flops = 6 * (weights + m["model_dim"] * run["vocab_size"] + pairs)
        peak = {"v4": 275e12, "v5e": 197e12, "v5p": 459e12, "v6e": 918e12}[chip] * run["chips"]
        factor = peak * run["step_seconds"] / (flops * run["batch_size"] * length)
        assert run["factor"] == pytest.approx(factor)
        used += [(chip, factor)] * ("extra" not in run)
    assert len(used) >= 8 and {chip for chip, _ in used} == set(CHIPS)
    assert factors() == pytest.approx((min(x for _, x in used), max(x for _, x in used)))
