"""Processes of one run: they join or say what is wrong, and all end when one does."""

import re
import signal
import socket
import subprocess

import pytest

from hyla_lm.errors import UserError
from hyla_lm.parallel import processes
from tests.parallel.running import Finished, free_port, run_processes, start_processes

SILENCE = 3
AGAIN = "the same command resumes from the newest checkpoint"
PROCESS = """
import ctypes, os, signal, sys, time
from hyla_lm.errors import UserError
from hyla_lm.parallel import processes

def fail(error):
    raise error

def hold_and_rest():
    ctypes.PyDLL(None).sleep(2)  # keeps the interpreter's lock
    time.sleep(1)

acts = {
    "die": lambda: [processes.gather(0), os.kill(os.getpid(), signal.SIGKILL)],
    "crash": lambda: fail(ValueError("a bug")),
    "mistake": lambda: fail(UserError("no data here: copy it.")),
    "sleep": lambda: time.sleep(300),
    "rest": lambda: time.sleep(6),
    "hold": lambda: [hold_and_rest() for _ in range(2)],
    "work": lambda: [processes.gather(number) for number in range(10**9)],
    "go": lambda: None,
    "linger": lambda: None,
}
with processes.joined(sys.argv[2]):
    processes.barrier("the middle")
    print("together", flush=True)
    acts[sys.argv[1]]()
if sys.argv[1] == "linger":
    time.sleep(4)
print("the end")
"""
Process = subprocess.Popen[str]


def commands(*acts: str) -> list[list[str]]:
    return [["-c", PROCESS, act, "runs/mine"] for act in acts]


def run(*acts: str, **environment: object) -> list[Finished]:
    finished = run_processes(commands(*acts), 1, **environment)
    assert all("together" in output for _, output, _ in finished), finished
    return finished


def started(*acts: str) -> list[Process]:
    """Processes that are together, past the barrier."""
    begun = start_processes(commands(*acts), 1, HYLA_LM_SILENCE_SECONDS=SILENCE)
    for process in begun:
        assert process.stdout is not None
        while "together" not in (line := process.stdout.readline()):
            assert line, process.communicate()
    return begun


def last_line(error: str) -> str:
    return error.splitlines()[-1]


def test_a_good_end_is_no_alarm() -> None:
    for status, output, error in run("linger", "go", "go", HYLA_LM_SILENCE_SECONDS=1):
        assert (status, "the end" in output) == (0, True), error


def test_the_others_name_one_that_dies() -> None:
    first, second, third = run("work", "work", "die")
    assert third[0] == -signal.SIGKILL
    for status, _, error in (first, second):
        assert status == processes.UNAVAILABLE, error
        assert re.search(rf"hyla-lm: process 2 .* has disconnected \(.*Gloo.*\); {AGAIN}", error)


def test_the_others_end_when_process_0_dies() -> None:
    """JAX aborts them at the same moment, so that the status may be its own."""
    first, second = run("die", "work")
    assert first[0] == -signal.SIGKILL
    status, _, error = second
    assert status in (processes.UNAVAILABLE, -signal.SIGABRT)
    if status == processes.UNAVAILABLE:
        assert f"hyla-lm: process 0 has disconnected; {AGAIN}." in error.splitlines()


@pytest.mark.parametrize("failing", [0, 1])
def test_the_others_are_told_of_a_crash(failing: int) -> None:
    acts = ["sleep", "sleep"]
    acts[failing] = "crash"
    finished = run(*acts)
    status, _, error = finished[failing]
    assert status == 1 and "ValueError: a bug" in error and "Traceback" in error
    status, _, error = finished[1 - failing]
    assert status == processes.UNAVAILABLE
    said = rf"hyla-lm: process {failing} \(\S+\) ended: ValueError: a bug"
    assert re.fullmatch(said, last_line(error)), error


def test_a_mistake_in_one_process_is_the_status_of_all() -> None:
    (status, _, error), (own_status, _, own_error) = run("work", "mistake")
    assert status == own_status == 2
    assert last_line(own_error) == "hyla-lm: no data here: copy it."
    assert re.search(r"process 1 \(\S+\) ended: no data here: copy it\.", error)


def test_a_process_that_does_not_come_to_a_barrier_is_named() -> None:
    for status, _, error in run("go", "sleep", "go", HYLA_LM_BARRIER_SECONDS=3):
        assert status == processes.UNAVAILABLE
        expected = r"process 1 \(\S+\) did not come to the end of the run within 3 s of the first"
        assert re.search(expected, error), error


@pytest.mark.parametrize("silent", [0, 1])
def test_a_stopped_process_is_named_and_ends_when_it_resumes(silent: int) -> None:
    both = started("sleep", "sleep")
    stopped, survivor = both[silent], both[1 - silent]
    stopped.send_signal(signal.SIGSTOP)
    try:
        error = survivor.communicate(timeout=60)[1]
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert survivor.returncode == processes.UNAVAILABLE
    said = rf"hyla-lm: process {silent}( \(\S+\))? has not answered for {SILENCE} s; {AGAIN}\."
    assert re.fullmatch(said, last_line(error)), error
    stopped.communicate(timeout=60)
    assert stopped.returncode in (processes.UNAVAILABLE, -signal.SIGABRT)


def test_a_process_that_rests_or_keeps_its_interpreter_busy_is_not_silent() -> None:
    for status, _, error in run("rest", "hold", HYLA_LM_SILENCE_SECONDS=SILENCE):
        assert status == 0, error


def test_processes_that_do_not_all_come_end_in_a_sentence() -> None:
    more = {"JAX_NUM_PROCESSES": 3, "HYLA_LM_JOIN_SECONDS": 2}
    for status, output, error in run_processes(commands("go", "go"), 1, **more):
        assert (status, "together" in output) == (processes.UNAVAILABLE, False)
        said = r"hyla-lm: not all processes of the run joined at 127\.0\.0\.1:\d+ within 2 s: .*"
        assert re.fullmatch(said, last_line(error)) and "JAX_NUM_PROCESSES (3 here)" in error


@pytest.mark.parametrize("what", ["JAX_NUM_PROCESSES", "--workdir"])
def test_processes_of_other_runs_do_not_start(what: str) -> None:
    port, begun = free_port(), []
    for index in range(2):
        named = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_PROCESS_ID": index}
        named["JAX_NUM_PROCESSES"] = 2 + index if what == "JAX_NUM_PROCESSES" else 2
        workdir = f"runs/{index}" if what == "--workdir" else "runs/mine"
        begun += start_processes([["-c", PROCESS, "go", workdir]], 1, **named)
    for process in begun:
        output, error = process.communicate(timeout=60)
        assert process.returncode == 2 and "together" not in output
        assert f"process 1 runs with another {what} than process 0: give all" in error


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        [(status, _, error)] = run_processes(
            commands("go"), 1, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES=2
        )
    assert status == 1 and f"JAX's service does not start at {address}" in error


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"JAX_COORDINATOR_ADDRESS": "10.0.0.1"}, "= '10.0.0.1' must be HOST:PORT of process 0"),
        ({"JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID = 2 must be below JAX_NUM_PROCESSES = 2"),
        ({"JAX_NUM_PROCESSES": "two"}, "JAX_NUM_PROCESSES = 'two' must be a whole number"),
        ({"HYLA_LM_SILENCE_SECONDS": "0"}, "HYLA_LM_SILENCE_SECONDS = 0 must be at least 1"),
    ],
)
def test_an_environment_that_cannot_be_is_named(
    changed: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1234", "JAX_NUM_PROCESSES": "2"}
    for name, value in {**here, "JAX_PROCESS_ID": "0", **changed}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=re.escape(says)), processes.joined("runs/mine"):
        pass
