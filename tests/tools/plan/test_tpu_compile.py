"""Attention and hyla-lm plan by the TPU compiler, without chips."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

try:
    LIBTPU: str | None = importlib.metadata.version("libtpu")
except importlib.metadata.PackageNotFoundError:
    LIBTPU = None

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(LIBTPU is None, reason="needs libtpu: pip install '.[tpu]'"),
]


def run(*command: str, status: int = 0) -> tuple[str, str]:
    """A process of its own, since libtpu reads its settings when it is loaded."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, done.stderr


def compiled(length: int, attention: str) -> dict[str, Any]:
    output, _ = run("tests/tools/plan/tpu_runs.py", str(length), attention)
    return json.loads(output.splitlines()[-1])


@pytest.mark.parametrize("attention", ["hyla", "softmax"])
def test_the_kernel_keeps_pairs_on_the_chip(attention: str) -> None:
    found = compiled(640, attention)  # no other size, so an array with two of it is T x T
    assert found["square_arrays"] == []
    assert found["kernels"] == [f"{attention}_backward", f"{attention}_forward"]


# Forward and backward of one sequence and layer of H=8, K=U=64, bfloat16, causal, as published.
COUNTED_WITH = "0.0.42.1"
CYCLES = {512: 139_819, 1024: 484_508}


@pytest.mark.skipif(LIBTPU != COUNTED_WITH, reason=f"cycles are those of libtpu {COUNTED_WITH}")
@pytest.mark.parametrize("length", CYCLES)
def test_the_kernel_takes_no_more_cycles_than_published(length: int) -> None:
    found = compiled(length, "hyla")
    assert 0.9 * CYCLES[length] < sum(found["cycles"]) <= CYCLES[length]


SEQUENCE = 384  # no other size of the model
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
ModelConfig.attention = "hyla"
ModelConfig.scan_layers = True
"""


def plan_of(tmp_path: Path, *arguments: str, status: int = 0) -> tuple[str, str]:
    gin = tmp_path / "model.gin"
    gin.write_text(MODEL)
    return run("-m", "hyla_lm", "plan", f"--gin_file={gin}", *arguments, status=status)


def planned(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """A plan whose step trains by the kernel, and sends no T x T array."""
    plan = json.loads(plan_of(tmp_path, "--json", "--compiles=0", *arguments)[0])
    assert plan["fits"] and plan["kernels"] == ["pallas_hyla"] * 2
    shapes = [shape for x in plan["collectives"] for shape in x["shapes"]]
    assert not [shape for shape in shapes if shape.count(SEQUENCE) >= 2]
    return plan


def test_data_parallel_steps_reduce_gradients_and_nothing_else(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--topology=v5e:2x4", "--gin.ModelConfig.remat=True")
    assert plan["mesh"]["data"] == 8
    assert {x["kind"] for x in plan["collectives"]} == {"all-reduce"}
    assert all(x["axes"] == ["data"] and x["group_size"] == 8 for x in plan["collectives"])
    # The gradient of every parameter once, in float32, and some sums of metrics.
    reduced = sum(x["bytes"] * x["times"] for x in plan["collectives"])
    assert 4 * plan["parameters"] < reduced < 4 * plan["parameters"] + 256
    short, long = plan["predicted"]["shortest"], plan["predicted"]["longest"]
    assert 0 < short["step_seconds"] < long["step_seconds"]
    assert 1 > short["mfu"] > long["mfu"] > 0


def test_fsdp_gathers_parameters_and_scatters_gradients(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--topology=v5e:2x4", "--gin.MeshConfig.fsdp=4")
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
    assert plan["memory"]["optimizer"] < 8 * parameters / 3, "a quarter of two moments"


def test_only_sums_go_from_slice_to_slice(tmp_path: Path) -> None:
    plan = planned(tmp_path, "--topology=v5e:2x2", "--slices=2", "--gin.MeshConfig.replica=2")
    assert {x["kind"] for x in plan["collectives"] if x["between_slices"]} == {"all-reduce"}


def test_the_model_axis_splits_query_positions(tmp_path: Path) -> None:
    mesh = ("--gin.MeshConfig.data=1", "--gin.MeshConfig.model=4")
    plan = planned(tmp_path, "--topology=v5e:2x2", *mesh)
    assert "all-gather" in {x["kind"] for x in plan["collectives"]}


def test_a_step_that_does_not_fit_says_what_to_change(tmp_path: Path) -> None:
    large = ("--topology=v5e:2x4", "--gin.TrainConfig.batch_size=524288")
    out, said = plan_of(tmp_path, *large, "--json", status=1)
    plan = json.loads(out)
    assert plan["fits"] is False
    assert plan["needed_bytes"] > plan["available_bytes"] == 15.75 * 2**30
    assert "GiB per chip" in said and "accumulate_steps" in said


def test_the_terminal_shows_the_plan_and_the_search_for_a_batch(tmp_path: Path) -> None:
    shown, said = plan_of(tmp_path, "--topology=v5e:2x2", "--compiles=1")
    assert "largest batch, compile 1 of at most 1" in said
    for part in ("data 4", "GiB per chip", "all-reduce", "2 x pallas_hyla", "ms per step"):
        assert part in shown
