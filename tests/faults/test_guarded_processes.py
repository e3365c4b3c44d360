"""Two processes skip the same updates and compare the same numbers as one does."""

from pathlib import Path

import pytest

from tests.parallel.running import run_processes, train_command
from tests.parallel.test_multihost import LEARNING_RATE, LOOKED_AT
from tests.run_lines import measured

# A norm above the one before is a spike, so that some of the first updates are.
WATCHED = (
    "CanaryConfig.every=4",
    "UpdatePolicy.spike_factor=1.0",
    "UpdatePolicy.spike_memory=1",
    "UpdatePolicy.spike='skip'",
    "OptimizerConfig.learning_rate=1e-3",
    "TrainConfig.steps=8",
    "TrainConfig.accumulate_steps=2",
)


@pytest.mark.full
def test_two_processes_watch_their_numbers_as_one(tiny_gin: Path, tmp_path: Path) -> None:
    for name, processes, devices in (("one", 1, 4), ("two", 2, 2)):
        command = train_command(tiny_gin, tmp_path / name, *WATCHED)
        for status, _, error in run_processes([command] * processes, devices):
            assert status == 0, error
    one, two = measured(tmp_path / "one"), measured(tmp_path / "two")
    assert [line["step"] for line in two if "canary/loss" in line] == [0, 4, 8]
    assert 0 < one[-3]["optim/skipped_updates"] < 8
    for ours, whole in zip(two, one, strict=True):
        assert ours == pytest.approx(whole, rel=1e-4, abs=1e-5)


def test_both_processes_stop_at_the_bound(tiny_gin: Path, tmp_path: Path) -> None:
    """HYLA's blocks differ in the last bits, and a bound of 0 allows none."""
    watched = ("CanaryConfig.every=4", "CanaryConfig.bound=0.0")
    compiled_once = (f"OptimizerConfig.learning_rate={LEARNING_RATE}", *LOOKED_AT)
    command = train_command(tiny_gin, tmp_path / "run", *watched, *compiled_once)
    for status, _, error in run_processes([command] * 2, 2):
        assert status != 0 and "Traceback" not in error
        assert "step 0: the kernel that trains (blocked)" in error
