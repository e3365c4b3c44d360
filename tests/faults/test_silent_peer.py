"""A process that falls silent, with its connections open: the others end, and so does it later."""

import re
import signal
import subprocess
import time

import pytest

from hyla_lm.parallel.liveness import EXIT_STATUS
from tests.parallel.processes import start_processes

SILENCE = 3
MOST_LINES = 10
PROCESS = """
import ctypes, sys, time
from hyla_lm.parallel import multihost

def hold_and_rest():
    ctypes.PyDLL(None).sleep(2)  # keeps the interpreter's lock
    time.sleep(1)

acts = {
    "work": lambda: [multihost.gather(number) for number in range(10**9)],
    "sleep": lambda: time.sleep(300),
    "rest": lambda: time.sleep(6),
    "hold": lambda: [hold_and_rest() for _ in range(2)],
}
with multihost.joined("runs/mine"):
    multihost.barrier("the middle")
    print("together", flush=True)
    acts[sys.argv[1]]()
"""
Process = subprocess.Popen[str]


def started(*acts: str, **more: object) -> list[Process]:
    """Processes that are together, past the barrier."""
    commands = [["-c", PROCESS, act] for act in acts]
    processes = start_processes(commands, 1, HYLA_LM_SILENCE_SECONDS=SILENCE, **more)
    for process in processes:
        assert process.stdout is not None
        while "together" not in (line := process.stdout.readline()):
            assert line, process.communicate()
    return processes


def ended(process: Process) -> tuple[int, list[str]]:
    """The status and the lines on standard error."""
    error = process.communicate(timeout=60)[1]
    return process.returncode, error.splitlines()


def sentence(silent: int) -> str:
    return (
        rf"hyla-lm: process {silent} \(\S+\) has not answered for {SILENCE} s; "
        r"the same command goes on from the newest checkpoint\."
    )


@pytest.mark.parametrize("act", ["work", "sleep"])
@pytest.mark.parametrize("silent", [0, 1])
def test_a_stopped_process_is_named_and_ends_when_it_goes_on(silent: int, act: str) -> None:
    processes = started(act, act)
    stopped, survivor = processes[silent], processes[1 - silent]
    stopped.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        status, lines = ended(survivor)
        assert time.monotonic() - began < SILENCE + 3
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert (status, len(lines) <= MOST_LINES) == (EXIT_STATUS, True), lines
    assert re.fullmatch(sentence(silent), lines[-1]), lines
    status, lines = ended(stopped)
    assert status == EXIT_STATUS, lines
    assert any(re.fullmatch(sentence(silent), line) for line in lines), lines


def test_all_others_end_when_one_is_silent() -> None:
    first, second, stopped = started("sleep", "sleep", "sleep")
    stopped.send_signal(signal.SIGSTOP)
    try:
        found = [ended(process) for process in (first, second)]
    finally:
        stopped.kill()
        stopped.communicate()
    for status, lines in found:
        assert status == EXIT_STATUS and re.fullmatch(sentence(2), lines[-1]), lines


def test_processes_that_are_stopped_together_go_on_together() -> None:
    processes = started("work", "work")
    for order in (signal.SIGSTOP, signal.SIGCONT):
        for process in processes:
            process.send_signal(order)
        time.sleep(SILENCE + 2)
    assert [process.poll() for process in processes] == [None, None]
    for process in processes:
        process.kill()
        process.communicate()


def test_a_process_that_rests_or_keeps_its_interpreter_busy_is_not_silent() -> None:
    for status, lines in map(ended, started("rest", "hold")):
        assert status == 0, lines


@pytest.mark.parametrize("seconds", [0, 201])
def test_a_silence_that_cannot_be_is_named(seconds: int) -> None:
    [process] = start_processes([["-c", PROCESS, "work"]], 1, HYLA_LM_SILENCE_SECONDS=seconds)
    expected = f"HYLA_LM_SILENCE_SECONDS = {seconds} must be from 1 to 200: correct the environment"
    assert expected in process.communicate(timeout=60)[1]
