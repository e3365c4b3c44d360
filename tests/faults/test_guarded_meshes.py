"""Skips and canaries are the same on every mesh."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_skips_and_canaries_on_meshes_of_eight_devices(tiny_gin: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.guarded_meshes", str(tiny_gin)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 3
    one = found["(1, 1, 1, 1)"]
    for of_mesh in found.values():
        assert of_mesh["skipped"] == [0, 0, 1, 1]
        assert of_mesh["same"] == [False, False, True, False]
        # The same sums in another order; the third step of Adam has little to smooth them.
        assert of_mesh["norms"] == pytest.approx(one["norms"], rel=1e-4)
        assert of_mesh["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert of_mesh["sound"] < 1e-4 and of_mesh["lying"] > 1e-3
