"""Attention and a train step as the TPU compiler compiles them, without chips."""

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LENGTH = 640  # no other size of the model, so an array with two of it is T x T
SCAN = "ModelConfig.scan_layers = True"

try:
    LIBTPU: str | None = importlib.metadata.version("libtpu")
except importlib.metadata.PackageNotFoundError:
    LIBTPU = None

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(LIBTPU is None, reason="needs libtpu: pip install '.[tpu]'"),
]


def run(*command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    finished = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-2000:]
    return finished.stdout


def compiled(topology: str, program: str, length: int, *options: str) -> dict[str, Any]:
    output = run("tests/tools/plan/tpu_runs.py", topology, program, str(length), *options)
    return json.loads(output.splitlines()[-1])


KERNELS = {
    "hyla": ["hyla_backward", "hyla_forward"],
    "softmax": ["softmax_backward", "softmax_forward"],
}


@pytest.mark.parametrize("attention", KERNELS)
def test_the_kernel_keeps_pairs_on_the_chip(attention: str) -> None:
    found = compiled("v5e:2x2", "kernel", LENGTH, attention, "pallas_tpu")
    assert found["square_arrays"] == []
    assert found["kernels"] == KERNELS[attention]


def test_auto_takes_the_kernel_in_a_data_parallel_step() -> None:
    """With blocks recomputed in a scan over layers, which the interpreter cannot do."""
    remat = "ModelConfig.remat = True"
    found = compiled("v5e:4x4", "train_step", LENGTH, "hyla", "auto", SCAN, remat)
    assert found["square_arrays"] == []
    assert found["kernels"] == KERNELS["hyla"]
    assert set(found["collectives"]) == {"all-reduce"}
    assert found["temporary_bytes"] < 8 * 2**30, "half of a chip"


def test_only_sums_go_from_slice_to_slice() -> None:
    """Of gradients and metrics, where each slice holds a replica of a data-parallel run."""
    small = ("ModelConfig.num_layers = 2", "ModelConfig.model_dim = 128")
    mesh = ("MeshConfig.replica = 2", "MeshConfig.data = 4", "TrainConfig.batch_size = 16")
    found = compiled("2@v5e:2x2", "train_step", 256, "hyla", "auto", SCAN, *small, *mesh)
    assert found["between_slices"] == ["all-reduce"]
    assert found["kernels"] == KERNELS["hyla"]


def test_the_model_axis_splits_query_positions() -> None:
    mesh = ("MeshConfig.data = 1", "MeshConfig.model = 4", "TrainConfig.batch_size = 4")
    found = compiled("v5e:2x2", "train_step", LENGTH, "hyla", "auto", SCAN, *mesh)
    assert found["square_arrays"] == []
    assert found["kernels"] == KERNELS["hyla"]
    assert "all-gather" in found["collectives"]


# Forward and backward of one sequence and layer of H=8, K=U=64, bfloat16, causal, as published.
COUNTED_WITH = "0.0.42.1"
CYCLES = {512: 139_194, 1024: 474_428}


@pytest.mark.skipif(LIBTPU != COUNTED_WITH, reason=f"cycles are those of libtpu {COUNTED_WITH}")
@pytest.mark.parametrize("length", CYCLES)
def test_the_kernel_takes_no_more_cycles_than_published(length: int) -> None:
    found = compiled("v5e:2x2", "kernel", length, "hyla", "pallas_tpu")
    assert 0.9 * CYCLES[length] < sum(found["cycles"].values()) <= CYCLES[length]
