"""hyla-lm plan: what it says of a step that fits, of one that does not, and of mistakes."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.attention.chips import CHIPS
from hyla_lm.tools.cycles.operations import PartCycles
from hyla_lm.tools.cycles.topology import Slice
from hyla_lm.tools.plan.collectives import Collective
from hyla_lm.tools.plan.compile import Memory, parse_refusal
from hyla_lm.tools.plan.plan import Options, consequences, step_time

ROOT = Path(__file__).parents[3]
SEQUENCE = 384  # no other size of the model, so an array with two of it is T x T
MODEL = f"""
TrainConfig.task = @LanguageModel()
TrainConfig.steps = 2000
TrainConfig.batch_size = 16
LanguageModel.data = @Rows()
LanguageModel.sequence_length = {SEQUENCE}
LanguageModel.vocab_size = 512
ModelConfig.num_layers = 2
ModelConfig.model_dim = 128
ModelConfig.num_heads = 4
ModelConfig.head_dim = 32
ModelConfig.mlp_dim = 256
ModelConfig.attention = "linear"
"""
try:
    importlib.metadata.version("libtpu")
    HAS_LIBTPU = True
except importlib.metadata.PackageNotFoundError:
    HAS_LIBTPU = False
needs_libtpu = pytest.mark.skipif(not HAS_LIBTPU, reason="needs libtpu: pip install '.[tpu]'")


@pytest.mark.parametrize(
    ("name", "chips", "is_torus"),
    [
        ("v5e:1x1", 1, False),
        ("v5e:8x16", 128, False),
        ("v5e:16x16", 256, True),
        ("v6e:2x4", 8, False),
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


def test_peaks_follow_from_matrix_units_and_clock() -> None:
    """Four units a core: a multiply-add counts 2. On v6e units count as four of 256 x 256."""
    for chip in CHIPS.values():
        products = chip.cores * 4 * chip.matrix_unit**2
        assert 2 * products * chip.clock_hz == pytest.approx(chip.peak_flops, rel=0.01)


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
    made = consequences(0.020, plan, Options(topology, price_per_chip_hour=2.0))
    assert made == pytest.approx(
        {
            "step_seconds": 0.020,
            "tokens_per_second": 50_000,
            "tokens_per_second_per_chip": 3125,
            "mfu": 3125,
            "run_hours": 0.020,
            "chip_hours": 0.32,
            "cost": 0.64,
        }
    )


def run(tmp_path: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    """A process of its own, since libtpu reads its settings when it is loaded."""
    gin = tmp_path / "model.gin"
    gin.write_text(MODEL)
    command = [sys.executable, "-m", "hyla_lm", "plan", f"--gin_file={gin}", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr


def planned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    return json.loads(run(tmp_path, "--topology=v5e:2x4", "--json", "--compiles=0", *arguments)[0])


def square_arrays(plan: dict[str, Any]) -> list[Any]:
    shapes = [shape for x in plan["collectives"] for shape in x["shapes"]]
    return [shape for shape in shapes if shape.count(SEQUENCE) >= 2]


@pytest.mark.full
@needs_libtpu
def test_data_parallel_steps_reduce_gradients_and_nothing_else(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan["fits"] and plan["mesh"]["data"] == 8
    assert plan["kernels"] == ["linear_chunks_of_512"] * 2
    assert {x["kind"] for x in plan["collectives"]} == {"all-reduce"}
    assert all(x["axes"] == ["data"] and x["group_size"] == 8 for x in plan["collectives"])
    assert square_arrays(plan) == []
    # The gradient of every parameter once, in float32, and some sums of metrics.
    reduced = sum(x["bytes"] * x["times"] for x in plan["collectives"])
    assert 4 * plan["parameters"] < reduced < 4 * plan["parameters"] + 256
    clock = 1.5e9
    for method in ("estimated", "counted"):
        total = sum(part[method] for part in plan["cycles"])
        assert plan["step_seconds"][f"{method}_compute"] == pytest.approx(total / clock)
    short, long = plan["predicted"]["shortest"], plan["predicted"]["longest"]
    assert 0 < plan["step_seconds"]["bound"] <= short["step_seconds"] <= long["step_seconds"]


@pytest.mark.full
@needs_libtpu
def test_fsdp_gathers_parameters_and_scatters_gradients(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--gin.MeshConfig.fsdp=4")
    assert plan["mesh"]["data"] == 2 and square_arrays(plan) == []
    moved = {
        kind: sum(x["bytes"] * x["times"] for x in plan["collectives"] if x["kind"] == kind)
        for kind in ("all-gather", "reduce-scatter", "all-reduce")
    }
    assert set(moved) >= {x["kind"] for x in plan["collectives"]}
    # Each parameter once in bfloat16, but for biases; each gradient once in float32, small ones as
    # sums; the quarter of a chip over `data`.
    parameters, small = plan["parameters"], 2**16
    assert moved["all-gather"] == pytest.approx(2 * parameters, abs=small)
    reduced = moved["reduce-scatter"] + moved["all-reduce"]
    assert reduced == pytest.approx(4 * parameters + parameters, abs=small)
    assert moved["reduce-scatter"] > 0
    whole = planned(tmp_path)
    assert plan["memory"]["optimizer"] < whole["memory"]["optimizer"] / 3


@pytest.mark.full
@needs_libtpu
def test_a_step_that_does_not_fit_says_what_to_change(tmp_path: Path) -> None:
    large = ("--topology=v5e:2x4", "--gin.TrainConfig.batch_size=16384")
    large += ('--gin.ModelConfig.attention="hyla"',)
    large += ('--gin.ModelConfig.attention_implementation="reference"',)
    out, said = run(tmp_path, *large, "--json", status=1)
    plan = json.loads(out)
    assert plan["fits"] is False
    assert plan["needed_bytes"] > plan["available_bytes"] == 15.75 * 2**30
    for setting in ("attention_implementation", "accumulate_steps", "batch_size", "remat", "fsdp"):
        assert setting in said
    assert "GiB per chip" in said
