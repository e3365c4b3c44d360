"""Runs killed at random moments end like one never stopped; `make faults` kills many more."""

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults import report
from tests.faults.kills import Chain, Kills
from tests.faults.phases import PHASES
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


def told(chains: Iterable[Chain], seed: int, path: Path | None) -> list[Chain]:
    """The chains, each told when it has ended; with a path, all that ended are written there."""
    found: list[Chain] = []
    for chain in chains:
        found.append(chain)
        kills = ", ".join(f"{kill.phase} {kill.number}" for kill in chain.kills)
        print(f"{chain.name}: {kills or 'no kill'}: {chain.faults or 'equal'}", flush=True)
        if path is not None:
            report.write(path, report.as_json(found, seed))
    print(report.table(found), flush=True)
    return found


def faults_of(chains: Iterable[Chain]) -> dict[str, list[str]]:
    return {chain.name: chain.faults for chain in chains if chain.faults}


def test_a_few_killed_runs_end_like_one_never_stopped(command: Command, tmp_path: Path) -> None:
    kills = Kills(killed(command, SHORT_STEPS), SHORT_STEPS, tmp_path / "runs", SHORT_SEED)
    chains = told(kills.chains(SHORT_KILLS), SHORT_SEED, None)
    assert faults_of(chains) == {}
    row = report.counts(chains)["all"]
    assert row["kills"] == row["resumes"] == row["equal"] == SHORT_KILLS


@pytest.mark.faults
@pytest.mark.timeout(4 * 3600)
def test_many_killed_runs_end_like_one_never_stopped(command: Command, tmp_path: Path) -> None:
    count, seed = int(os.environ.get("KILLS", "200")), int(os.environ.get("SEED", "0"))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "kills.json"
    kills = Kills(killed(command, STEPS), STEPS, tmp_path / "runs", seed)
    chains = told(kills.chains(count), seed, path)
    assert faults_of(chains) == {}
    found = report.counts(chains)
    assert found["all"]["kills"] == found["all"]["resumes"] == count
    assert count < 200 or min(found[phase]["kills"] for phase in PHASES) > 4
