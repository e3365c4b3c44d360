"""The quickstart's own model and data, trained by several processes with two devices each.

Gradients of several devices are summed in another order by each number of processes. In float32
that rounding grows about twofold a step in the quickstart's first updates, where Adam scales
gradients up however small they are: losses part by 2e-5 from the 11th to the 14th step on (measured
with 2 and with 4 processes; 10 steps stay below 8e-6). So they are compared for as long as float32
lets them. In float64, where rounding lies far below Adam's epsilon, nothing grows: 20 steps of 2
and of 4 processes differed by 3e-16.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.ending import STOPPED as EXIT_STATUS
from tests.parallel.running import environment, run_processes
from tests.run_lines import measured

pytestmark = pytest.mark.full
ROOT = Path(__file__).parents[2]
RELATIVE_LOSS = 2e-5
STEPS, STOP = 10, 4
WIDE_STEPS, RELATIVE_WIDE_LOSS = 20, 1e-12  # float64 rounds at 1e-16: room for 10^4 of these
DEVICES = 2


class Quickstart:
    """Runs of the quickstart by step; all of them share one corpus."""

    def __init__(self, home: Path):
        self.home = home

    def command(self, name: str, last: int, precision: str, *bindings: str) -> list[str]:
        cache = self.home / "cache"
        return [
            *(str(Path(__file__).with_name("quickstart_run.py")), str(last), precision, "train"),
            *(f"--gin_file={ROOT}/gin/quickstart.gin", f"--workdir={self.home / name}"),
            *(f"--gin.SampleCorpus.cache='{cache}'", "--gin.LogConfig.every=1"),
            *(f"--gin.{binding}" for binding in bindings),
        ]

    def alone(self, name: str, devices: int, last: int, precision: str = "float32") -> list[str]:
        done = subprocess.run(
            [sys.executable, *self.command(name, last, precision)],
            env=environment(devices),
            capture_output=True,
            text=True,
        )
        assert done.returncode == EXIT_STATUS, done.stderr
        return [done.stdout]

    def together(
        self, name: str, count: int, last: int, precision: str = "float32", *bindings: str
    ) -> list[str]:
        command = self.command(name, last, precision, *bindings)
        # Process 0 alone finds what it compiled before, and waits 30 s at most for the others.
        uncached = {"JAX_ENABLE_COMPILATION_CACHE": False}
        finished = run_processes([command] * count, DEVICES, **uncached)
        assert [status for status, _, _ in finished] == [EXIT_STATUS] * count, finished
        return [output for _, output, _ in finished]

    def losses(self, name: str) -> dict[int, float]:
        lines = measured(self.home / name, "train/loss_nats")
        return {line["step"]: line["train/loss_nats"] for line in lines}


def rows(outputs: list[str]) -> dict[int, set[int]]:
    """The rows of each step, of all processes together."""
    found: dict[int, set[int]] = {}
    for output in outputs:
        for line in output.splitlines():
            if line.startswith('{"step"'):
                step = json.loads(line)
                found.setdefault(step["step"], set()).update(step["rows"])
    return found


def assert_close(
    found: dict[int, float],
    expected: dict[int, float],
    steps: range,
    relative: float = RELATIVE_LOSS,
) -> None:
    np.testing.assert_allclose(
        [found[step] for step in steps], [expected[step] for step in steps], rtol=relative
    )


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    return Quickstart(tmp_path_factory.mktemp("quickstart"))


@pytest.fixture(scope="module")
def whole(quickstart: Quickstart) -> dict[int, set[int]]:
    """One process with eight devices."""
    return rows(quickstart.alone("whole", 8, STEPS))


@pytest.mark.parametrize("count", [2, 4])
def test_processes_follow_one(
    count: int, quickstart: Quickstart, whole: dict[int, set[int]]
) -> None:
    name = f"of_{count}"
    read = rows(quickstart.together(name, count, STEPS))
    steps = range(1, STEPS + 1)
    assert [read[step] for step in steps] == [whole[step] for step in steps]
    assert_close(quickstart.losses(name), quickstart.losses("whole"), steps)


@pytest.fixture(scope="module")
def wide(quickstart: Quickstart) -> dict[int, float]:
    """Losses of one process with eight devices in float64."""
    quickstart.alone("wide", 8, WIDE_STEPS, "float64")
    return quickstart.losses("wide")


@pytest.mark.parametrize(
    ("count", "mesh"),
    [
        (2, ()),
        (4, ()),
        (2, ("MeshConfig.fsdp=2",)),
        (2, ("MeshConfig.data=1", "MeshConfig.model=4")),
    ],
)
def test_processes_follow_one_for_longer_in_float64(
    count: int, mesh: tuple[str, ...], quickstart: Quickstart, wide: dict[int, float]
) -> None:
    name = "_".join(("wide_of", str(count), *mesh))
    quickstart.together(name, count, WIDE_STEPS, "float64", *mesh)
    steps = range(1, WIDE_STEPS + 1)
    assert_close(quickstart.losses(name), wide, steps, RELATIVE_WIDE_LOSS)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_a_checkpoint_of_four_processes_goes_on_in_one(
    devices: int, quickstart: Quickstart, whole: dict[int, set[int]], tmp_path: Path
) -> None:
    name = f"restored_on_{devices}"
    quickstart.together(name, 4, STOP)
    saved = max(int(path.name) for path in (quickstart.home / name / "checkpoints").glob("[0-9]*"))
    assert STOP <= saved < STEPS
    read = rows(quickstart.alone(name, devices, STEPS))
    steps = range(saved + 1, STEPS + 1)
    assert [read[step] for step in steps] == [whole[step] for step in steps]
    assert min(read) == saved + 1
    assert_close(quickstart.losses(name), quickstart.losses("whole"), steps)
