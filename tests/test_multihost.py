"""Processes of one run tell each other what each must know."""

import json
import socket
import subprocess
import sys

from hyla_lm.multihost import gather

PROCESSES = 3
SCRIPT = """
import json, sys
import jax
index, count, port = map(int, sys.argv[1:])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", count, index)
from hyla_lm.multihost import gather
print(json.dumps(gather({"document": {"epoch": 0, "file": index}, "token": 10**index})))
"""


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def last_line(output: str) -> list[dict]:
    """What the script printed; Gloo writes lines of its own before."""
    return json.loads(output.splitlines()[-1])


def test_one_process_gathers_its_own_value() -> None:
    assert gather({"rows_read": 3}) == [{"rows_read": 3}]


def test_every_process_sees_the_values_of_all_in_order() -> None:
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(index), str(PROCESSES), str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(PROCESSES)
    ]
    answers = [last_line(process.communicate(timeout=120)[0]) for process in processes]
    expected = [{"document": {"epoch": 0, "file": i}, "token": 10**i} for i in range(PROCESSES)]
    assert answers == [expected] * PROCESSES
