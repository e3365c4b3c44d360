"""The benchmarks' promises hold."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.full
def test_blocked_attention_is_twice_as_fast_in_an_eighth_of_the_memory() -> None:
    script = Path(__file__).parent / "benchmarks" / "bench_attention.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
