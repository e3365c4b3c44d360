"""Runs killed at random moments end like one never stopped; `make faults` kills many more."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.faults.kills import PHASES, Chain, Kills, kills_by_phase, table, write_json
from tests.faults.runs import Command

STEPS, SHORT_STEPS = 120, 50
PERIODS = (
    "TrainConfig.eval_every = 17",
    "CheckpointConfig.every = 37",
    "LogConfig.every = 7",
)
SHORT_KILLS, SHORT_SEED = 3, 1


def killed(command: Command, steps: int) -> Command:
    bindings = (*command.bindings, *PERIODS, f"TrainConfig.steps = {steps}")
    return replace(command, bindings=bindings)


def all_equal(chains: Iterable[Chain], path: Path) -> Counter[str]:
    """Kills by phase of the chains, of which none may differ; each is printed when it has ended."""
    ended: list[Chain] = []
    for chain in chains:
        ended.append(chain)
        print(f"{chain.name}: {chain.kills or 'no kill'}: {chain.faults or 'equal'}", flush=True)
        write_json(path, [asdict(chain) for chain in ended])
    print(table(ended), flush=True)
    assert {chain.name: chain.faults for chain in ended if chain.faults} == {}
    return kills_by_phase(ended)


def test_a_few_killed_runs_end_like_one_never_stopped(command: Command, tmp_path: Path) -> None:
    kills = Kills(killed(command, SHORT_STEPS), SHORT_STEPS, tmp_path / "runs", SHORT_SEED)
    found = all_equal(kills.chains(SHORT_KILLS), tmp_path / "kills.json")
    assert found.total() == SHORT_KILLS


@pytest.mark.faults
@pytest.mark.timeout(4 * 3600)
def test_many_killed_runs_end_like_one_never_stopped(command: Command, tmp_path: Path) -> None:
    count, seed = int(os.environ.get("KILLS", "200")), int(os.environ.get("SEED", "0"))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "kills.json"
    kills = Kills(killed(command, STEPS), STEPS, tmp_path / "runs", seed)
    found = all_equal(kills.chains(count), path)
    assert found.total() == count
    assert count < 200 or min(found[phase] for phase in PHASES) > 4
