"""Skips are the same on every mesh."""

import json
from pathlib import Path

import pytest

from tests.scripts import output_of


def test_skips_on_meshes_of_eight_devices(tiny_gin: Path) -> None:
    found = json.loads(output_of("tests.faults.guarded_meshes", str(tiny_gin), devices=8))
    assert len(found) == 2
    one = found["(1, 1, 1, 1)"]
    for of_mesh in found.values():
        assert of_mesh["skipped"] == [0, 0, 1, 1]
        assert of_mesh["same"] == [False, False, True, False]
        # The same sums in another order; the third step of Adam has little to smooth them.
        assert of_mesh["norms"] == pytest.approx(one["norms"], rel=1e-4)
