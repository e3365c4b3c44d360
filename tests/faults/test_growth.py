"""A run of 10,000 steps does not grow; `make faults` runs it.

What grows is looked for in memory and CPU time of a step, and in bytes of what is logged.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest

from hyla_lm.run.summary import LEARNING_RATE
from tests.faults.kills import write_json
from tests.faults.runs import Command, Running

STEPS, LIMIT = 10_000, 1.02
LONGEST_SECONDS = 3600.0
# All divide the steps between two measurements, so that each window holds as many due actions.
PERIODS = (
    f"TrainConfig.steps = {STEPS}",
    "TrainConfig.eval_every = 50",
    "CheckpointConfig.every = 100",
    "LogConfig.every = 10",
)


# The command hyla-lm. Every hundredth step adds a line to a file: the step, CPU seconds, kilobytes
# of memory now and at most.
MEASURED_TRAIN = """
import json, sys, time
from pathlib import Path
from hyla_lm import ending
from hyla_lm.cli import main as cli
from hyla_lm.logs.step_log import StepLog

path, record = Path(sys.argv[1]), StepLog.record

def recorded(log, step, *rest):
    record(log, step, *rest)
    if step % 100 == 0:
        status = Path("/proc/self/status").read_text().splitlines()
        sizes = dict(line.split(":", 1) for line in status)
        resident, peak = (int(sizes[name].split()[0]) for name in ("VmRSS", "VmHWM"))
        with path.open("a") as file:
            file.write(json.dumps([step, time.process_time(), resident, peak]) + "\\n")

StepLog.record = recorded
sys.argv = ["hyla-lm", *sys.argv[2:]]
ending.process(cli.main)
"""


class Measured(NamedTuple):
    """The process at a step: its CPU seconds, its memory in kilobytes."""

    step: int
    cpu: float
    resident: int
    peak: int


def step_seconds(found: Sequence[Measured]) -> float:
    """CPU seconds of a step: the lowest quarter, since what disturbs a step only adds to it."""
    seconds = [(b.cpu - a.cpu) / (b.step - a.step) for a, b in pairwise(found)]
    return quantiles(seconds, n=4)[0]


def growth(found: Sequence[Measured], lines: Sequence[str]) -> dict[str, float]:
    """Ratios of the last fifth to the second fifth; the first warms up."""
    fifth, fifth_lines = len(found) // 5, len(lines) // 5
    first, last = found[fifth : 2 * fifth], found[-fifth:]
    early = median(map(len, lines[fifth_lines : 2 * fifth_lines]))
    return {
        "step_cpu_seconds": step_seconds(last) / step_seconds(first),
        "peak": last[-1].peak / first[-1].peak,
        "resident": median(s.resident for s in last) / median(s.resident for s in first),
        "line_bytes": median(map(len, lines[-fifth_lines:])) / early,
    }


@pytest.mark.faults
@pytest.mark.timeout(2 * 3600)
def test_a_long_run_does_not_grow(command: Command, tmp_path: Path) -> None:
    long = replace(command, bindings=(*command.bindings, *PERIODS))
    steps, workdir = tmp_path / "steps", tmp_path / "run"
    running = Running(long, workdir, start=("-c", MEASURED_TRAIN, str(steps)))
    assert running.ended(LONGEST_SECONDS) == 0, running.errors()
    found = [Measured(*json.loads(line)) for line in steps.read_text().splitlines()]
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    ratios = growth(found, [line for line in lines if LEARNING_RATE in line])
    print(json.dumps(ratios, indent=1))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "growth.json"
    write_json(path, {"ratios": ratios, "measured": found})
    assert {name: ratio for name, ratio in ratios.items() if ratio > LIMIT} == {}
