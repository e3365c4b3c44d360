"""A process for each run: how it ends, how many at once, how all are stopped and continued."""

import json
import sys
from pathlib import Path
from textwrap import indent

import pytest

from hyla_lm.cli.sweep import status_of
from hyla_lm.ending import DONE, FAILED, Preempted
from hyla_lm.tools.sweep.record import Record
from hyla_lm.tools.sweep.results import Metric, summarize
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
    json.dump({{"step": 10, "validation": {{"bits_per_byte": 1.5}}, "tokens_seen": 1}}, file)
"""
FAILS = 'sys.exit("hyla-lm: step 7: loss nan. Lower it.\\n  a second line")'
WAITS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("step 6/10  waits", flush=True)
time.sleep(60)
"""
DIES_OF_THE_SIGNAL = "print('step 6/10  waits', flush=True); time.sleep(60)"


def program(body: str) -> tuple[str, ...]:
    return sys.executable, "-S", "-c", PROGRAM.format(body=body)


class Sweep:
    """Trains runs by a stand-in, three at once; `shown` has the lines that a person reads."""

    def __init__(self, tmp_path: Path):
        self.folder, self.shown = tmp_path / "sweep", list[str]()
        self.folder.mkdir(exist_ok=True)

    def processes(self, body: str) -> Processes:
        self.running = Processes(program(body), str(self.folder), self.show)
        return self.running

    def show(self, line: str) -> None:
        """Stops all where one run waits."""
        self.shown.append(line)
        if "waits" in line:
            self.running.stop()

    def status(self, runs: list[Run], body: str = "") -> int:
        """How the sweep ends, and in `failures` what it recorded."""
        self.shown.clear()
        record = Record(str(self.folder), runs)
        train_runs(runs, METRIC, record, self.processes(body), 3, self.show)
        self.failures = json.loads((self.folder / "sweep.json").read_text())["failures"]
        return status_of(summarize(METRIC, runs, record.failures))


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return Sweep(tmp_path)


@pytest.mark.parametrize("body", [WAITS, DIES_OF_THE_SIGNAL], ids=["saves", "dies"])
def test_a_stop_leaves_the_rest_to_the_same_command(planned: Plan, sweep: Sweep, body: str) -> None:
    of_one = "if 'rate=0.2/seed=0' in workdir:\n" + indent(body, "    ")
    with pytest.raises(Preempted, match="of 6 runs left to train"):
        sweep.status(planned(), of_one)
    assert any(line.endswith("seed=0: stopped") for line in sweep.shown)
    assert sweep.failures == {}
    assert sweep.status(planned()) == DONE
    stopped = sweep.processes("")
    stopped.stop()
    assert stopped.train(planned()[0]) is None


def test_a_failed_run_is_noted_the_others_train_and_it_is_tried_again(
    planned: Plan, sweep: Sweep
) -> None:
    body = f"if 'rate=0.2/seed=0' in workdir:\n    {FAILS}"
    assert sweep.status(planned(), body) == FAILED
    assert sum(": finished" in line for line in sweep.shown) == 5
    assert sweep.failures == {"learning_rate=0.2/seed=0": "step 7: loss nan. Lower it."}
    assert sweep.status(planned()) == DONE
    assert sweep.shown[0] == "6 runs, 5 of them finished" and sweep.failures == {}


def test_runs_train_at_once(planned: Plan, sweep: Sweep) -> None:
    """Each waits for the two others."""
    body = (
        f"open({str(sweep.folder)!r} + '/' + str(os.getpid()) + '.here', 'w').close()\n"
        f"while sum(n.endswith('.here') for n in os.listdir({str(sweep.folder)!r})) < 3:\n"
        "    time.sleep(0.01)"
    )
    assert sweep.status(planned(seeds=1), body) == DONE
