"""Runs killed at random moments of their phases and started again.

A chain is one run: its process is sent a signal, started again, and so on until it ends by itself.
Then it must equal a run never stopped. The phase of a process is known by the files of its run.
"""

import json
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyla_lm.run.folder import EVENTS
from tests.faults.runs import Command, Running, differences, unfinished

# Until it opens its curves; while it trains; while a checkpoint is not whole; after the last one.
PHASES = START, LOOP, COMMIT, CLOSE = "start", "loop", "commit", "close"
SIGNALS = (*[signal.SIGKILL] * 7, *[signal.SIGTERM] * 2, signal.SIGINT)
# SIGTERM ends a process at once until the run is open; from then on the run saves first.
STATUSES = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (75, -signal.SIGTERM),
    signal.SIGINT: (75, 128 + signal.SIGINT, -signal.SIGINT),
}
MOST_KILLS = 6  # of one run
SHARE_NOT_CACHED = 0.1
COMMIT_SECONDS = 0.2
WATCH_SECONDS = 0.0005
MOST_ERROR_LINES = 10


@dataclass
class Chain:
    """One run through its kills; `faults` is empty if it ended as a run never stopped does.

    A kill is the name of the signal and the phase of the process that it ended.
    """

    name: str
    kills: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Watched(Running):
    """A process whose phase is known by the files that it adds to its run."""

    def __init__(self, command: Command, workdir: Path, last_step: int, is_cached: bool = True):
        self._last = workdir / "checkpoints" / str(last_step)
        self._events_before = len(list(workdir.glob(f"{EVENTS}*")))
        super().__init__(command, workdir, is_cached)

    def phase(self) -> str:
        if len(list(self.workdir.glob(f"{EVENTS}*"))) == self._events_before:
            return START
        if self._last.exists():
            return CLOSE
        return COMMIT if unfinished(self.workdir) else LOOP


class Kills:
    """Chains of kills of one command, in a folder of their own."""

    def __init__(self, command: Command, last_step: int, home: Path, seed: int):
        self._command, self._last_step, self._home = command, last_step, home
        self._rng = random.Random(seed)
        home.mkdir(parents=True)
        cold, _ = self._run_whole("cold", is_cached=False)
        self._run_whole("first")
        self._whole, self._seconds = self._run_whole("warm")
        assert not differences(self._whole, cold, last_step)

    def chains(self, count: int) -> Iterator[Chain]:
        """Chains until there were so many kills; each comes when it has ended."""
        number = 0
        while count > 0:
            chain = self._chain(f"chain{number}", min(count, self._rng.randint(1, MOST_KILLS)))
            number, count = number + 1, count - len(chain.kills)
            yield chain

    def _run_whole(self, name: str, is_cached: bool = True) -> tuple[Path, dict[str, float]]:
        """The folder of a run never stopped, and the seconds of its phases."""
        running = Watched(self._command, self._home / name, self._last_step, is_cached)
        seconds, before = dict.fromkeys(PHASES, 0.0), running.started
        while running.is_alive:
            time.sleep(WATCH_SECONDS)
            phase, now = running.phase(), time.monotonic()
            seconds[phase] += now - before
            before = now
        assert running.ended() == 0, running.errors()
        return running.workdir, seconds

    def _chain(self, name: str, count: int) -> Chain:
        """A run that is killed so often, if it does not end before; then it ends by itself."""
        chain, workdir = Chain(name), self._home / name
        status = -1
        for number in range(count + 1):
            status = self._process(chain, workdir, is_killed=number < count)
            if status == 0 or chain.faults:
                break
        if not chain.faults:
            chain.faults = differences(workdir, self._whole, self._last_step)
        return chain

    def _process(self, chain: Chain, workdir: Path, is_killed: bool) -> int:
        """The status of a process of the run, which is sent a signal at a random moment."""
        number = self._rng.choice(SIGNALS)
        is_cached = self._rng.random() > SHARE_NOT_CACHED
        running = Watched(self._command, workdir, self._last_step, is_cached)
        phase = self._send(running, number) if is_killed else None
        try:
            status = running.ended()
        except subprocess.TimeoutExpired as error:
            chain.faults.append(f"it did not end in {error.timeout:.0f} seconds")
            return -signal.SIGKILL
        if status == 0:
            return status
        errors = running.errors()
        is_loud = "Traceback" in errors or len(errors.splitlines()) > MOST_ERROR_LINES
        if is_loud or phase is None or status not in STATUSES[number]:
            chain.faults.append(f"status {status} in {phase}: {errors[-2000:]}")
        if phase is not None:
            chain.kills.append((number.name, phase))
        return status

    def _send(self, running: Watched, number: int) -> str | None:
        """Sends the signal and returns the phase; None if the process ends before the moment.

        Half of the moments lie anywhere in a run, half in a phase, each phase alike.
        """
        phase, seconds = START, sum(self._seconds.values())
        if self._rng.random() < 0.5:
            phase = self._rng.choice(PHASES)
            seconds = min(self._seconds[phase], COMMIT_SECONDS if phase == COMMIT else seconds)
        delay = self._rng.uniform(0, seconds)
        began: float | None = None
        while running.is_alive:
            if began is None and running.phase() == phase:
                began = time.monotonic()
            if began is not None and time.monotonic() >= began + delay:
                found = running.phase()
                running.send(number)
                return found
            time.sleep(WATCH_SECONDS)
        return None


def kills_by_phase(chains: Sequence[Chain]) -> Counter[str]:
    return Counter(phase for chain in chains for _, phase in chain.kills)


def table(chains: Sequence[Chain]) -> str:
    """Kills by phase as Markdown; a kill is equal if its chain ended as a whole run does."""
    kills, equal = kills_by_phase(chains), kills_by_phase([x for x in chains if not x.faults])
    rows = [f"| {phase} | {kills[phase]} | {equal[phase]} |" for phase in PHASES]
    return "\n".join(["| phase | kills | equal |", "| --- | ---: | ---: |", *rows])


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
