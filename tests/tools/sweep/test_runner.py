"""A process for each run: how it ends, how many at once, how all are stopped and continued."""

import sys
from pathlib import Path
from textwrap import indent

import pytest

from hyla_lm.tools.sweep.results import Metric
from hyla_lm.tools.sweep.runner import Processes, train_runs
from hyla_lm.tools.sweep.runs import Run
from tests.tools.sweep.conftest import Plan

METRIC = Metric("validation/bits_per_byte", "lowest")
# Stands in for `hyla-lm train`, and finishes where a body does not end it before.
PROGRAM = """
import json, os, signal, sys, time
[workdir] = [a.partition("=")[2] for a in sys.argv if a.startswith("--workdir=")]
print("step 5/10  loss 2.0", flush=True)
{body}
os.makedirs(workdir, exist_ok=True)
with open(workdir + "/summary.json", "w") as file:
    json.dump({{"step": 10, "validation": {{"bits_per_byte": 1.5}}}}, file)
"""
FAILS = 'sys.exit("hyla-lm: step 7: loss nan. Lower it.\\n  a second line")'
WAITS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("step 6/10  waits", flush=True)
time.sleep(60)
"""
DIES_OF_THE_SIGNAL = "print('step 6/10  waits', flush=True); time.sleep(60)"


class Sweep:
    """Trains runs by a stand-in, three at once; `shown` has the lines that a person reads."""

    def __init__(self, tmp_path: Path):
        self.folder, self.shown = tmp_path / "sweep", list[str]()
        self.folder.mkdir(exist_ok=True)

    def show(self, line: str) -> None:
        """Stops all where one run waits."""
        self.shown.append(line)
        if "waits" in line:
            self.processes.stop()

    def failures(self, runs: list[Run], body: str = "") -> dict[str, str]:
        """Why runs failed."""
        self.shown.clear()
        program = (sys.executable, "-S", "-c", PROGRAM.format(body=body))
        self.processes = Processes(program, str(self.folder), self.show)
        return train_runs(runs, METRIC, self.processes, 3, self.show)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


@pytest.mark.parametrize("body", [WAITS, DIES_OF_THE_SIGNAL], ids=["saves", "dies"])
def test_a_stop_leaves_the_rest_to_the_same_command(planned: Plan, sweep: Sweep, body: str) -> None:
    of_one = "if 'rate=0.2/seed=0' in workdir:\n" + indent(body, "    ")
    runs = planned()
    assert sweep.failures(runs, of_one) == {} and not runs[2].summary()
    assert sweep.processes.train(runs[2]) == "" and not runs[2].summary(), "none begins any more"
    assert sweep.failures(runs) == {} and all(run.summary() for run in runs)


def test_a_failed_run_is_reported_the_others_train_and_it_is_tried_again(
    planned: Plan, sweep: Sweep
) -> None:
    body = f"if 'rate=0.2/seed=0' in workdir:\n    {FAILS}"
    failures = sweep.failures(planned(), body)
    assert failures == {"learning_rate=0.2/seed=0": "step 7: loss nan. Lower it."}
    assert sum(": finished" in line for line in sweep.shown) == 5
    assert sweep.failures(planned()) == {}
    assert sweep.shown[0] == "6 runs, 5 of them finished"


def test_runs_train_at_once(planned: Plan, sweep: Sweep) -> None:
    """Each waits for the two others."""
    body = (
        f"open({str(sweep.folder)!r} + '/' + str(os.getpid()) + '.here', 'w').close()\n"
        f"while sum(n.endswith('.here') for n in os.listdir({str(sweep.folder)!r})) < 3:\n"
        "    time.sleep(0.01)"
    )
    assert sweep.failures(planned(seeds=1), body) == {}
