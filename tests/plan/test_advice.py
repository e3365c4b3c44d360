"""The advice for a step that does not fit names no mesh that is refused."""

import re
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.parallel.mesh import AXES, MeshConfig, make_mesh
from hyla_lm.tools.plan.advice import advice
from hyla_lm.tools.plan.compile import OutOfMemory
from hyla_lm.tools.plan.topology import Slice

DEVICES: Any = [SimpleNamespace(platform="cpu", id=index) for index in range(16)]


def said(*sizes: int) -> list[str]:
    mesh: Any = jax.sharding.AbstractMesh(sizes, AXES)
    refusal = OutOfMemory(20 * 2**30, 15.75 * 2**30, mesh)
    return advice(read_experiment(["gin/c4_50m_hyla.gin"], []), Slice("v5e:4x4"), refusal)


@pytest.mark.parametrize("sizes", [(1, 16, 1, 1), (1, 2, 8, 1), (1, 4, 1, 4), (2, 8, 1, 1)])
def test_the_mesh_that_it_names_is_one_of_all_chips(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    (line,) = (line for line in said(*sizes) if "MeshConfig" in line)
    named = {axis: int(size) for axis, size in re.findall(r"MeshConfig\.(\w+) = (\d+)", line)}
    monkeypatch.setattr("jax.make_mesh", lambda sizes, *_, **__: sizes)
    made: Any = make_mesh(MeshConfig(**dict(zip(AXES, sizes, strict=True)) | named), DEVICES)
    assert made == (sizes[0], 1, sizes[1] * sizes[2], sizes[3])


def test_it_names_no_mesh_where_parameters_are_divided_over_all_chips() -> None:
    assert not [line for line in said(1, 1, 16, 1) if "MeshConfig" in line]
