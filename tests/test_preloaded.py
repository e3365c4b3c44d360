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
ENDS = """
import atexit, sys, threading, time
def say_late():
    time.sleep(0.1)
    print("thread")
atexit.register(print, "atexit")
threading.Thread(target=say_late).start()
print("main")
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


def test_it_is_a_child_that_signals_end() -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        process = preloaded.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert process.poll() is None
        process.send_signal(number)
        process.communicate()
        assert process.returncode == -number


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit('why')", 1),
        ("raise ValueError", 1),
        ("sys.stdout = open('/dev/full', 'w'); print('lost')", 120),
    ],
)
def test_it_ends_like_a_process_started_as_usual(end: str, status: int) -> None:
    """Threads are waited for, what is registered for the end runs, and outputs are written."""
    command = [sys.executable, "-c", ENDS + end]
    options = {"capture_output": True, "text": True}
    copied, usual = preloaded.run(command, **options), subprocess.run(command, **options)
    assert copied.returncode == usual.returncode == status
    assert copied.stdout == usual.stdout
    last = [done.stderr.splitlines()[-1:] for done in (copied, usual)]
    assert last[0] == last[1]
