"""Every mesh follows the run on one device, and fsdp really divides what a device holds."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from hyla_lm.errors import UserError
from hyla_lm.parallel.mesh import AXES, MeshConfig, make_mesh
from hyla_lm.parallel.sharding import parameter_spec
from tests.scripts import output_of

# Sums over devices run in another order: float32 rounding grows over 20 updates to a few 1e-6.
RELATIVE_LOSS = 2e-5
GIN = """
TrainConfig.steps = 20
TrainConfig.batch_size = 16
LanguageModel.sequence_length = 16
ModelConfig.num_layers = 1
ModelConfig.model_dim = 32
ModelConfig.num_heads = 8
ModelConfig.head_dim = 8
ModelConfig.mlp_dim = 64
OptimizerConfig.clip_norm = 1.0
"""
# Two heads of keys and values are whole on a `model` axis of 8, and split on one of 2.
GROUPED = """
ModelConfig.num_kv_heads = 2
ModelConfig.norm = "rms"
ModelConfig.qk_norm = True
ModelConfig.gated_attention = True
ModelConfig.feedforward = "swiglu"
ModelConfig.logit_soft_cap = 0.5
"""
Sizes = tuple[int, int, int, int]
ALONE, DATA, FSDP = (1, 1, 1, 1), (2, 4, 1, 1), (1, 1, 8, 1)
EACH, MODEL = (2, 1, 2, 2), (1, 1, 1, 8)
SCALARS = 64


@pytest.mark.parametrize(
    ("attention", "parts", "meshes"),
    [
        ("softmax", GROUPED, (MODEL, EACH)),
        ("linear", "", (EACH,)),
        ("hyla", "", (DATA, FSDP, EACH)),
    ],
)
def test_meshes_of_8_devices_follow_one_device(
    attention: str, parts: str, meshes: tuple[Sizes, ...], tiny_gin: Path
) -> None:
    tiny_gin.write_text(tiny_gin.read_text() + GIN + parts)
    runs = run_on([ALONE, *meshes], attention, tiny_gin)
    alone = runs.pop(ALONE)
    assert alone["losses"][-1] < alone["losses"][0] - 0.5
    for sizes, run in runs.items():
        np.testing.assert_allclose(
            run["losses"], alone["losses"], rtol=RELATIVE_LOSS, err_msg=f"mesh {sizes}"
        )
        assert run["sums"]["reduce-scatter"] == 0, "gloo's returns wrong values from a few MB on"
    if DATA in runs:
        assert_each_gradient_crosses_once(runs[DATA], alone)
    if FSDP in runs:
        assert_parameters_are_divided(runs[FSDP], alone)


def run_on(meshes: list[Sizes], attention: str, gin_file: Path) -> dict[Sizes, dict[str, Any]]:
    """What mesh_runs.py finds, by mesh."""
    arguments = [str(gin_file), attention, json.dumps(meshes)]
    runs = json.loads(output_of("tests.parallel.mesh_runs", *arguments, devices=8))
    return {sizes: runs[str(sizes)] for sizes in meshes}


def assert_each_gradient_crosses_once(data_parallel: dict[str, Any], alone: dict[str, Any]) -> None:
    """That of the tied token table too, beside a few sums of metrics."""
    assert data_parallel["bytes"] == alone["bytes"]
    gradients = 4 * data_parallel["parameters"]
    assert gradients < data_parallel["sums"]["all-reduce"] < gradients + SCALARS


def assert_parameters_are_divided(fsdp: dict[str, Any], alone: dict[str, Any]) -> None:
    """Each parameter is brought once, each gradient added up once, beside norms and metrics."""
    assert fsdp["bytes"] <= alone["bytes"] / 8 + SCALARS
    crossing, parameters = fsdp["sums"], 4 * fsdp["parameters"]
    assert crossing["all-gather"] == parameters
    assert parameters < crossing["all-reduce"] < parameters + 8 * SCALARS


def test_a_dimension_that_does_not_divide_stays_whole() -> None:
    mesh = jax.sharding.AbstractMesh((1, 4, 8), ("data", "fsdp", "model"))
    assert parameter_spec("params/embed/table", (321, 32), mesh) == P(None, "fsdp")


@dataclass(frozen=True)
class FakeChip:
    """What JAX's mesh makers ask of a TPU: four chips in a square, a host each slice."""

    id: int
    platform: str = "tpu"
    device_kind: str = "TPU v5 lite"
    core_on_chip: int = 0

    @property
    def slice_index(self) -> int:
        return self.id // 4

    @property
    def process_index(self) -> int:
        return self.id // 4

    @property
    def coords(self) -> tuple[int, int, int]:
        return self.id % 2, self.id % 4 // 2, 0


def sized(*sizes: int) -> MeshConfig:
    return MeshConfig(**dict(zip(AXES, sizes, strict=True)))


TWO_SLICES = [FakeChip(index) for index in (4, 0, 5, 1, 6, 2, 7, 3)]


@pytest.mark.parametrize("sizes", [(2, 1, 2, 2), (-1, 1, 4, 1), (4, 1, 1, 2)])
def test_only_replica_goes_from_slice_to_slice(sizes: tuple[int, ...]) -> None:
    mesh = make_mesh(sized(*sizes), TWO_SLICES)
    slices = np.vectorize(lambda chip: chip.slice_index)(mesh.devices)
    per_slice = mesh.shape["replica"] // 2
    assert (slices[:per_slice] == 0).all() and (slices[per_slice:] == 1).all()
    assert {chip.id for chip in mesh.devices.flat} == set(range(8))


def test_slices_without_a_replica_of_their_own_are_an_error() -> None:
    with pytest.raises(UserError, match="MeshConfig.replica = 1 .* on 2 slices: set it to 2"):
        make_mesh(sized(1, 4, 2, 1), TWO_SLICES)
