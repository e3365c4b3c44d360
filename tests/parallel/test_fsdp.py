"""Under fsdp a parameter crosses devices twice a step: gathered once, its gradient reduced once."""

import json
from typing import Any

import pytest

from tests.scripts import output_of

# The largest difference of a new parameter, relative to the largest change of its array. bfloat16
# gradients of fewer rows are rounded before they are added up.
BOUNDS = {"float32": 1e-4, "scanned": 0.08, "on_cpu": 1e-4}
ON_TPU = ("float32", "scanned")
FSDP = 4


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    return json.loads(output_of("tests.parallel.fsdp_steps", devices=8))


@pytest.mark.parametrize("name", BOUNDS)
def test_a_step_is_that_of_one_device(runs: dict[str, Any], name: str) -> None:
    ours, alone = runs[name]["losses"]
    assert ours == pytest.approx(alone, rel=1e-4)
    assert runs[name]["apart"] < BOUNDS[name]


@pytest.mark.parametrize("name", ON_TPU)
def test_each_parameter_is_gathered_once_and_its_gradient_reduced_once(
    runs: dict[str, Any], name: str
) -> None:
    """Whatever the chunks of logits, the layers in a scan, remat and the micro-batches."""
    divided = [size for size in runs[name]["sizes"] if size % FSDP == 0]
    for kind in ("all_gather", "reduce_scatter"):
        assert sorted(size for k, _, size in runs[name]["crossing"] if k == kind) == divided


def test_cpus_add_up_without_a_reduce_scatter(runs: dict[str, Any]) -> None:
    """That of gloo returns wrong values from a few MB on."""
    divided = [size for size in runs["on_cpu"]["sizes"] if size % FSDP == 0]
    crossing = [(kind, size) for kind, _, size in runs["on_cpu"]["crossing"] if size > 1]
    assert crossing == [(kind, size) for kind in ("all_gather", "all_reduce") for size in divided]


@pytest.mark.parametrize("name", ON_TPU)
def test_matrices_are_gathered_in_the_dtype_of_activations_and_reduced_in_float32(
    runs: dict[str, Any], name: str
) -> None:
    wide = "f32" if name == "float32" else "bf16"
    crossing = runs[name]["crossing"]
    gathered = {dtype for kind, dtype, size in crossing if kind == "all_gather" and size > 100}
    assert gathered == {wide}
    assert {dtype for kind, dtype, _ in crossing if kind == "reduce_scatter"} == {"f32"}
