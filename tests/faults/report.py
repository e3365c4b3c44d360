"""What came of kills, by phase: as a table and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.kills import Chain
from tests.faults.phases import PHASES

COLUMNS = ("kills", "resumes", "equal", "differing", "loud")


def counts(chains: Sequence[Chain]) -> dict[str, dict[str, int]]:
    """Kills by phase; a kill is equal if the chain it belongs to ended as a whole run does."""
    found = {phase: dict.fromkeys(COLUMNS, 0) for phase in (*PHASES, "all")}
    for chain in chains:
        verdict = "differing" if chain.faults else "equal"
        for kill in chain.kills:
            for row in (found[kill.phase], found["all"]):
                row["kills"] += 1
                row["resumes"] += kill.is_resumed
                row[verdict] += 1
                row["loud"] += kill.is_loud
    return found


def table(chains: Sequence[Chain]) -> str:
    """The counts as Markdown."""
    lines = [f"| phase | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    for phase, row in counts(chains).items():
        lines.append(f"| {phase} | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    return "\n".join(lines)


def as_json(chains: Sequence[Chain], seed: int) -> dict[str, Any]:
    kills = [kill for chain in chains for kill in chain.kills]
    return {
        "seed": seed,
        "by_phase": counts(chains),
        "statuses": Counter(f"{kill.number} {kill.phase} {kill.status}" for kill in kills),
        "chains": [asdict(chain) for chain in chains],
    }


def write(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
