"""A run of 10,000 steps with 20 kills does not grow; `make faults` runs it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import growth, report
from tests.faults.growth import Growth
from tests.faults.runs import Command, differences

STEPS, KILLS, LIMIT = 10_000, 20, 1.02
MOST_CHECKPOINTS = 3 + 2  # kept, one to be deleted, one being written
# All divide the steps between two measurements, so that each window holds as many due actions.
PERIODS = (
    f"TrainConfig.steps = {STEPS}",
    "TrainConfig.eval_every = 50",
    "CheckpointConfig.every = 100",
    "LogConfig.every = 10",
)


@pytest.mark.faults
@pytest.mark.timeout(2 * 3600)
def test_a_long_run_that_is_killed_often_does_not_grow(command: Command, tmp_path: Path) -> None:
    long = replace(command, bindings=(*command.bindings, *PERIODS))
    run = Growth(long, STEPS, KILLS, tmp_path / "runs", int(os.environ.get("SEED", "0")))
    whole = run.whole()
    pairs = run.pairs()
    run.last()
    ratios = {
        "part_to_twin": growth.of_pairs(pairs),
        "whole": growth.of_whole(whole),
        "lines": growth.of_lines(run.workdir),
        "curves": growth.of_curves(run.workdir),
    }
    print(json.dumps(ratios, indent=1))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "growth.json"
    report.write(path, growth.as_json(whole, pairs, ratios))
    assert differences(run.workdir, run.whole_workdir, STEPS) == []
    for found in ratios.values():
        assert {name: ratio for name, ratio in found.items() if ratio > LIMIT} == {}
    assert max(pair.folder.checkpoints for pair in pairs) <= MOST_CHECKPOINTS
    assert len({pair.folder.files for pair in pairs}) == 1
    assert [pair.folder.events for pair in pairs] == list(range(2, KILLS + 1))
