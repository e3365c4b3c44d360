"""Runs killed at random moments of their phases and started again.

A chain is one run: its process is sent a signal, started again, and so on until it ends by itself.
Then it must equal a run never stopped.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.phases import CLOSE, COMMIT, COMPILE, PHASES, START, lasting
from tests.faults.runs import Command, Running, differences, left_behind

SIGNALS = (*[signal.SIGKILL] * 7, *[signal.SIGTERM] * 2, signal.SIGINT)
# SIGTERM ends a process at once until the run is open; from then on the run saves first.
STATUSES = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (75, -signal.SIGTERM),
    signal.SIGINT: (75, 128 + signal.SIGINT, -signal.SIGINT),
}
MOST_KILLS = 6  # of one run
MOST_TIMES = 3
COMMIT_SECONDS = 0.2
WATCH_SECONDS = 0.0005
MOST_ERROR_LINES = 10
COLUMNS = ("kills", "resumes", "equal", "differing", "loud")


@dataclass(frozen=True)
class Moment:
    """When to send which signal: so long after a phase began for so many times."""

    number: signal.Signals
    phase: str
    times: int
    delay: float
    is_cached: bool


@dataclass
class Kill:
    """A signal that ended a process, and the phase it was in.

    `is_loud` says that the process left a traceback or more lines than a person reads.
    """

    number: str
    phase: str
    seconds: float
    status: int
    is_loud: bool
    is_resumed: bool = False


@dataclass
class Chain:
    """One run through its kills; `faults` is empty if it ended as a run never stopped does."""

    name: str
    kills: list[Kill] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Whole:
    """A run never stopped, the seconds it took, and the mean seconds of its phases."""

    workdir: Path
    seconds: float
    phases: dict[str, float]


class Kills:
    """Chains of kills of one command, in a folder of their own."""

    def __init__(self, command: Command, last_step: int, home: Path, seed: int):
        self._command, self._last_step, self._home = command, last_step, home
        self._rng = random.Random(seed)
        home.mkdir(parents=True)
        self._cold = self._run_whole("cold", is_cached=False)
        self._run_whole("first")
        self._warm = self._run_whole("warm")
        self._pace = 1.0  # of the newest process that ended by itself, to the warm one
        assert not differences(self._warm.workdir, self._cold.workdir, last_step)

    def chains(self, count: int) -> Iterator[Chain]:
        """Chains until there were so many kills; each comes when it has ended."""
        number = 0
        while count > 0:
            chain = self._chain(f"chain{number}", min(count, self._rng.randint(1, MOST_KILLS)))
            number, count = number + 1, count - len(chain.kills)
            yield chain

    def _run_whole(self, name: str, is_cached: bool = True) -> Whole:
        workdir, phases = self._home / name, self._home / f"{name}.phases"
        running = Running(self._command, workdir, phases, is_cached)
        assert running.ended() == 0, running.errors()
        now = time.monotonic()
        return Whole(workdir, now - running.started, lasting(phases, now))

    def _chain(self, name: str, count: int) -> Chain:
        chain, workdir = Chain(name), self._home / name
        for number in range(count):
            phases = self._home / f"{name}.phases{number}"
            status = self._kill(chain, workdir, phases, self._moment())
            if status == 0 or chain.faults:
                break
        else:
            self._finish(chain, workdir)
        if not chain.faults:
            chain.faults = differences(workdir, self._warm.workdir, self._last_step)
        chain.left = left_behind(workdir, self._warm.workdir)
        return chain

    def _moment(self) -> Moment:
        """Half of the moments lie anywhere in a run, half in a phase, each phase alike."""
        number = self._rng.choice(SIGNALS)
        if self._rng.random() < 0.5:
            delay = self._rng.uniform(0, self._warm.seconds * self._pace)
            return Moment(number, START, 1, delay, is_cached=True)
        phase = self._rng.choice(PHASES)
        is_cached = phase != COMPILE or self._rng.random() < 0.5
        times = 1 if phase in (START, COMPILE, CLOSE) else self._rng.randint(1, MOST_TIMES)
        whole = self._warm if is_cached else self._cold
        longest = COMMIT_SECONDS if phase == COMMIT else whole.phases[phase]
        return Moment(number, phase, times, self._rng.uniform(0, longest * self._pace), is_cached)

    def _kill(self, chain: Chain, workdir: Path, phases: Path, moment: Moment) -> int:
        """Starts the run and sends it the signal of the moment, if it comes; returns its status."""
        running = Running(self._command, workdir, phases, moment.is_cached)
        phase = send_at(running, moment)
        seconds = time.monotonic() - running.started
        status = self._ended(running, chain)
        if status != 0 and (phase is None or status not in STATUSES[moment.number]):
            chain.faults.append(f"status {status} in {phase}: {running.errors()[-2000:]}")
        mark_resumed(chain)
        if status != 0 and phase is not None:
            is_loud = has_much_to_say(running.errors())
            chain.kills.append(Kill(moment.number.name, phase, seconds, status, is_loud))
        return status

    def _finish(self, chain: Chain, workdir: Path) -> None:
        """Starts the run and lets it end by itself."""
        running = Running(self._command, workdir, self._home / f"{chain.name}.phases")
        status = self._ended(running, chain)
        if status != 0:
            chain.faults.append(f"status {status} at the end: {running.errors()[-2000:]}")
        mark_resumed(chain)

    def _ended(self, running: Running, chain: Chain) -> int:
        """The status of a process that ends; one that ends by itself tells the machine's pace."""
        try:
            status = running.ended()
        except subprocess.TimeoutExpired as error:
            chain.faults.append(f"it did not end in {error.timeout:.0f} seconds")
            return -signal.SIGKILL
        if status == 0:
            self._pace = (time.monotonic() - running.started) / self._warm.seconds
        return status


def send_at(running: Running, moment: Moment) -> str | None:
    """Sends the signal at the moment and returns the phase; None if the process ends before it."""
    while running.is_alive:
        began = running.beginning(moment.phase, moment.times)
        if began is not None and time.monotonic() >= began + moment.delay:
            phase = running.phase()
            running.send(moment.number)
            return phase
        time.sleep(WATCH_SECONDS)
    return None


def mark_resumed(chain: Chain) -> None:
    """A later process of the chain ended as it should, from where the kills left the run."""
    for kill in chain.kills:
        kill.is_resumed = kill.is_resumed or not chain.faults


def has_much_to_say(errors: str) -> bool:
    return "Traceback" in errors or len(errors.splitlines()) > MOST_ERROR_LINES


def counts(chains: Sequence[Chain]) -> dict[str, dict[str, int]]:
    """Kills by phase; a kill is equal if the chain it belongs to ended as a whole run does."""
    by_phase = {phase: dict.fromkeys(COLUMNS, 0) for phase in (*PHASES, "all")}
    for chain in chains:
        verdict = "differing" if chain.faults else "equal"
        for kill in chain.kills:
            for row in (by_phase[kill.phase], by_phase["all"]):
                row["kills"] += 1
                row["resumes"] += kill.is_resumed
                row[verdict] += 1
                row["loud"] += kill.is_loud
    return by_phase


def table(chains: Sequence[Chain]) -> str:
    """The counts as Markdown."""
    lines = [f"| phase | {' | '.join(COLUMNS)} |", "| --- |" + " ---: |" * len(COLUMNS)]
    for phase, row in counts(chains).items():
        lines.append(f"| {phase} | {' | '.join(str(row[column]) for column in COLUMNS)} |")
    return "\n".join(lines)


def write_report(path: Path, chains: Sequence[Chain], seed: int) -> None:
    kills = [kill for chain in chains for kill in chain.kills]
    statuses = Counter(f"{kill.number} {kill.phase} {kill.status}" for kill in kills)
    report = {"seed": seed, "by_phase": counts(chains), "statuses": statuses}
    write_json(path, {**report, "chains": [asdict(chain) for chain in chains]})


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
