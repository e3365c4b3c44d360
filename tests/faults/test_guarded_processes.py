"""Two processes skip the same updates and compare the same numbers as one does."""

from pathlib import Path

from tests.parallel.running import run_processes, train_command
from tests.parallel.test_multihost import LEARNING_RATE, LOOKED_AT


def test_both_processes_stop_at_the_bound(tiny_gin: Path, tmp_path: Path) -> None:
    """HYLA's blocks differ in the last bits, and a bound of 0 allows none."""
    watched = ("CanaryConfig.every=4", "CanaryConfig.bound=0.0")
    compiled_once = (f"OptimizerConfig.learning_rate={LEARNING_RATE}", *LOOKED_AT)
    command = train_command(tiny_gin, tmp_path / "run", *watched, *compiled_once)
    for status, _, error in run_processes([command] * 2, 2):
        assert status != 0 and "Traceback" not in error
        assert "step 0: the kernel that trains (blocked)" in error
