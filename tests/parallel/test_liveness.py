"""Liveness with real processes: what the others do when one dies, fails or does not come."""

import os
import re
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from hyla_lm.ending import STOPPED
from hyla_lm.parallel.liveness import EXIT_STATUS
from hyla_lm.parallel.messages import LONGEST_LINE
from hyla_lm.parallel.multihost import gke_place
from hyla_lm.parallel.rendezvous import Place, join
from tests.parallel.processes import Finished, free_port, run_processes, start_processes

PROCESS = """
import os, signal, sys, time
from hyla_lm.parallel import multihost
from hyla_lm.config import UserError

def fail(error):
    raise error

acts = {
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda: fail(ValueError("a bug")),
    "mistake": lambda: fail(UserError("no data here: copy it.")),
    "hang": lambda: time.sleep(300),
    "work": lambda: [multihost.gather(number) for number in range(10**9)],
    "go": lambda: None,
    "linger": lambda: None,
}
with multihost.joined("runs/mine"):
    multihost.barrier("the middle")
    print("together", flush=True)
    acts[sys.argv[1]]()
if sys.argv[1] == "linger":
    time.sleep(4)
print("the end")
"""
# On most TPU hosts JAX finds the slice by itself: here it is told, and the environment names none.
STOPPED_WHERE_JAX_FOUND_THE_SLICE = """
import os, time
import jax
from hyla_lm import ending
from hyla_lm.parallel import multihost

names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
address, count, index = map(os.environ.pop, names)
jax.distributed.initialize(address, int(count), int(index))
told = ending.told

def told_late(error):
    time.sleep(2 * int(index))
    return told(error)

def stop():
    with multihost.joined("runs/mine"):
        raise ending.Preempted("stopped")

ending.told = told_late
ending.process(lambda: ending.run("hyla-lm", stop))
"""


def run(*acts: str, **environment: object) -> list[Finished]:
    finished = run_processes([["-c", PROCESS, act] for act in acts], 1, **environment)
    assert all("together" in output for _, output, _ in finished), finished
    return finished


def test_a_good_end_is_no_alarm() -> None:
    for status, output, error in run("linger", "go", "go"):
        assert (status, "the end" in output) == (0, True), error


def test_one_that_stops_late_ends_with_the_status_of_all() -> None:
    for status, _, error in run_processes([["-c", STOPPED_WHERE_JAX_FOUND_THE_SLICE]] * 2, 1):
        assert status == STOPPED, error


def test_the_others_end_when_one_dies() -> None:
    first, second, third = run("work", "work", "die")
    assert third[0] == -signal.SIGKILL
    for status, _, error in (first, second):
        assert status == EXIT_STATUS, error
        assert re.search(r"hyla-lm: process 2 \(\S+\) is gone; the same command goes on", error)


def test_the_others_end_when_process_0_dies() -> None:
    """JAX aborts them at the same moment, so that the status may be its own."""
    first, second, third = run("die", "work", "work")
    assert first[0] == -signal.SIGKILL
    for status, _, error in (second, third):
        assert status in (EXIT_STATUS, -signal.SIGABRT)
        if status == EXIT_STATUS:
            assert re.search(r"hyla-lm: process 0 \(127.0.0.1:\d+\) is gone", error)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_crash_is_told_to_the_others(failing: int) -> None:
    acts = ["work", "work"]
    acts[failing] = "crash"
    finished = run(*acts)
    status, _, error = finished[failing]
    assert status == 1 and "ValueError: a bug" in error and "Traceback" not in error
    status, _, error = finished[1 - failing]
    assert status == EXIT_STATUS
    assert re.search(rf"process {failing} \(\S+\) ended: ValueError: a bug", error)


def test_a_mistake_in_one_process_is_named_by_all() -> None:
    (status, _, error), (own_status, _, own_error) = run("work", "mistake")
    assert status == own_status == 2
    assert own_error.splitlines()[-1] == "hyla-lm: no data here: copy it."
    assert re.search(r"process 1 \(\S+\) ended: no data here: copy it\.", error)


def test_a_process_that_does_not_come_to_a_barrier_is_named() -> None:
    for status, _, error in run("go", "hang", "go", HYLA_LM_BARRIER_SECONDS=3):
        assert status == EXIT_STATUS
        expected = r"process 1 \(\S+\) did not come to the end of the run within 3 s of the first"
        assert re.search(expected, error), error


def test_a_host_that_never_comes_is_named_before_jax_starts() -> None:
    command = ["-c", PROCESS, "go"]
    more = {"JAX_NUM_PROCESSES": 3, "HYLA_LM_JOIN_SECONDS": 2}
    for status, output, error in run_processes([command] * 2, 1, **more):
        assert status != 0 and "together" not in output
        assert "2 of 3 hosts came within 2 s, process 2 did not" in error


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[" * 5000 + b"\n", "a line that is not JSON"),
        (b'{"at": Infinity}\n', "Infinity"),
        (b'{"failed": "x", "status": "0"}\n', "no whole number as 'status'"),
        (b"x" * LONGEST_LINE, "a line of 8192 bytes or more"),
    ],
    ids=["deep", "infinite", "of another type", "long"],
)
def test_what_no_process_would_send_ends_the_run_in_a_sentence(line: bytes, reason: str) -> None:
    port = free_port()
    named = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": 2}
    [process] = start_processes([["-c", PROCESS, "go"]], 1, **named)
    place = Place(f"127.0.0.1:{port}", 2, 1)
    with closing(join(place, "runs/mine", 60)[0]) as connection:
        socket.socket(fileno=os.dup(connection.fileno())).sendall(line)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == EXIT_STATUS
    expected = (
        rf"hyla-lm: process 1 \(\S+\) sends what no process of a run would: it sent {reason}\."
    )
    assert re.fullmatch(expected, error.splitlines()[-1]), error
    assert len(error.splitlines()) <= 10


GKE = {"TPU_WORKER_HOSTNAMES": "slice-0-0.svc,slice-0-1.svc", "TPU_WORKER_ID": "1"}
SLICES = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        (GKE, Place("slice-0-0.svc:8482", 2, 1)),
        (
            {**GKE, **SLICES, "MEGASCALE_COORDINATOR_ADDRESS": "slice-0-0.all:8080"},
            Place("slice-0-0.all:8482", 4, 3),
        ),
    ],
)
def test_the_place_that_gke_gives(environment: dict[str, str], place: Place | None) -> None:
    assert gke_place(environment) == place


def test_docs_name_the_status() -> None:
    page = Path(__file__).parents[2] / "docs" / "exit_statuses.md"
    assert f"| {EXIT_STATUS} |" in page.read_text()
