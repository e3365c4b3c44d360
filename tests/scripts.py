"""Scripts of tests that need several CPU devices, whose number is fixed as JAX starts."""

import os
import sys
from pathlib import Path

from tests import preloaded

ROOT = Path(__file__).parents[1]


def output_of(module: str, *arguments: str, devices: int) -> str:
    """The last line that a module prints, as a process with so many devices."""
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", module, *arguments]
    done = preloaded.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
