"""A copied process is what the same command starts as usual."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded

SAYS = """
import json, os, signal, sys
import jax
of_start = ("GLIBC_TUNABLES", "TPU_SKIP_MDS_QUERY")  # huge pages; what importing JAX sets
environment = {k: v for k, v in os.environ.items() if k not in of_start}
handlers = [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)]
found = {"argv": sys.argv, "path": sys.path, "cwd": os.getcwd(), "environment": environment}
found |= {"settings": {k: str(v) for k, v in jax.config.values.items()}, "signals": handlers}
found |= {"devices": jax.device_count(), "name": __name__}
found |= {"open": sorted(os.listdir("/proc/self/fd"))}
print(json.dumps(found, sort_keys=True), file=sys.stderr)
sys.exit(7)
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is copied there")


def test_it_sees_what_a_process_started_as_usual_sees(tmp_path: Path) -> None:
    settings = {"JAX_NUM_CPU_DEVICES": "3", "JAX_ENABLE_X64": "true", "JAX_LOG_COMPILES": "0"}
    env = {**os.environ, **settings, "PYTHONPATH": "/elsewhere:/and/there"}
    options = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    command = [sys.executable, "-P", "-c", SAYS, "one", "two"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    copied, usual = preloaded.run(command, **options), subprocess.run(command, **options)
    signal.signal(signal.SIGINT, before)
    assert (copied.returncode, copied.stdout) == (usual.returncode, usual.stdout) == (7, "")
    assert copied.stderr == usual.stderr


@pytest.mark.parametrize(
    "end", ["raise ValueError", "sys.stdout = open('/dev/full', 'w'); print('lost')"]
)
def test_it_ends_like_a_process_started_as_usual(end: str) -> None:
    command = [sys.executable, "-c", f"import atexit, sys; atexit.register(print, 'last'); {end}"]
    options = {"capture_output": True, "text": True}
    copied, usual = preloaded.run(command, **options), subprocess.run(command, **options)
    assert (copied.returncode, copied.stdout) == (usual.returncode, usual.stdout)
    assert copied.stderr.splitlines()[-1] == usual.stderr.splitlines()[-1]
