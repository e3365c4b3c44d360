"""A process for each run: how it ends, how a sweep is stopped and continued."""

import sys
from pathlib import Path
from textwrap import indent

import pytest

from hyla_lm.tools.sweep.results import Metric
from hyla_lm.tools.sweep.runner import Trainer
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
    """Trains runs by a stand-in; `shown` has the lines that a person reads."""

    def __init__(self, tmp_path: Path):
        self.folder, self.shown = tmp_path / "sweep", list[str]()
        self.folder.mkdir(exist_ok=True)

    def show(self, line: str) -> None:
        """Stops the sweep where a run waits."""
        self.shown.append(line)
        if "waits" in line:
            self.trainer.stop()

    def failures(self, runs: list[Run], body: str = "") -> dict[str, str]:
        """Why runs failed."""
        self.shown.clear()
        program = (sys.executable, "-S", "-c", PROGRAM.format(body=body))
        self.trainer = Trainer(program, str(self.folder), self.show)
        return self.trainer.train_all(runs, METRIC)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


@pytest.mark.parametrize("body", [WAITS, DIES_OF_THE_SIGNAL], ids=["saves", "dies"])
def test_a_stop_leaves_the_rest_to_the_same_command(planned: Plan, sweep: Sweep, body: str) -> None:
    of_one = "if 'rate=0.2/seed=0' in workdir:\n" + indent(body, "    ")
    runs = planned()
    assert sweep.failures(runs, of_one) == {}
    assert [bool(run.summary()) for run in runs] == [True] * 2 + [False] * 4, "none begins any more"
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
