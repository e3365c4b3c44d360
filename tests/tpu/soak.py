"""Weeks of a training in seconds: a cloud with a clock of its own, and random faults.

python -m tests.tpu.soak prints the table of tpu/README.md.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hyla_lm.tpu.answers import LOST_CONNECTION
from hyla_lm.tpu.cloud import Cloud
from hyla_lm.tpu.launch import read_job
from hyla_lm.tpu.programs import TIMED_OUT, Done
from hyla_lm.tpu.supervise import supervise
from tests.tpu.answers import answer

HOUR = 3600.0
TRAINING_HOURS, CHECKPOINT_HOURS, MOST_HOURS = 180.0, 0.25, 2000.0
COMMIT = "0123456789abcdef0123456789abcdef01234567"
JOB = (
    *("supervise", "--name=hyla", "--project=my-project", "--zone=us-west4-a", "--spot"),
    *("--repository=https://example.com/hyla_lm.git", f"--revision={COMMIT}"),
    *("--gin_file=gin/a.gin", "--workdir=gs://b/run"),
)
# Answers that a command gets instead of its own: how often, and for how many calls in a row.
REFUSALS = {
    "describe": {"read_rate": (0.004, 6), "unavailable": (0.003, 3), "no_network": (0.002, 12)},
    "create": {"write_rate": (0.2, 6), "no_capacity": (0.3, 3), "retriable_invalid": (0.15, 2)},
    "delete": {"busy_request": (0.3, 2)},
    "install": {"pip_failed": (0.3, 4)},
}
HANGS = 0.002
# Hours between two, on average.
EVENTS = {"preempted": 14.0, "host away": 35.0, "host away a while": 25.0, "trainer ended": 20.0}
VERDICTS = {
    "first request": "waits in the queue, installs, starts",
    "preempted": "deleted and asked for again; place in the queue kept",
    "host away": "made again after 20 minutes",
    "host away a while": "tried again",
    "trainer ended": "started again on all hosts",
    "request failed": "deleted and asked for again, ever later",
    "gcloud hangs": "ended after its time, tried again",
    "read_rate": "asked again",
    "unavailable": "asked again",
    "no_network": "asked again",
    "no_capacity": "tried again, ever later",
    "write_rate": "tried again",
    "retriable_invalid": "tried again, ever later",
    "busy_request": "tried again",
    "pip_failed": "installed again",
}


class Soak:
    """A slice of four hosts, the training on it, and what goes wrong with both."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.now, self.trained, self.saved, self.billed = 0.0, 0.0, 0.0, 0.0
        self.resource, self.node, self.served_at = "", "", 0.0
        self.away_until, self.trainer, self.installed = 0.0, {}, False
        self.trainer: dict[str, Any]
        self.cause, self.lost = "first request", Counter[str]()
        self.times, self.streak = Counter[str](), Counter[str]()
        self.next = {name: self.random.expovariate(1 / mean) for name, mean in EVENTS.items()}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        """Lets the cloud, the training and the faults go on, minute by minute."""
        while seconds > 0:
            passed = min(seconds, 60.0)
            seconds -= passed
            self.now += passed
            self._pass(passed / HOUR)

    def _pass(self, hours: float) -> None:
        assert self.now < MOST_HOURS * HOUR, "the training never ends"
        self.billed += hours if self.node else 0
        if self.resource == "WAITING_FOR_RESOURCES" and self.now >= self.served_at:
            failed = self.random.random() < 0.1
            self.resource, self.node = ("FAILED", "") if failed else ("ACTIVE", "READY")
            if failed:
                self._blame("request failed")
        if self.trainer.get("state") != "running":
            self.lost[self.cause] += hours
            self.lost["all"] += hours
            return
        self.trained += hours
        self.saved = self.trained - self.trained % CHECKPOINT_HOURS
        for name in EVENTS:
            self.next[name] -= hours
            if self.next[name] <= 0 and self.trainer.get("state") == "running":
                self.next[name] = self.random.expovariate(1 / EVENTS[name])
                self._happen(name)
        if self.trained >= TRAINING_HOURS:
            self.trainer = {"state": "exited", "code": 0}

    def _happen(self, name: str) -> None:
        """The training stops, and what it did since its checkpoint is lost."""
        self._blame(name)
        self.lost[name] += self.trained - self.saved
        self.lost["all"] += self.trained - self.saved
        self.trained = self.saved
        self.trainer = {"state": "exited", "code": self.random.choice((1, 69, 75)), "failures": 0}
        if name == "preempted":
            self.resource, self.node = "SUSPENDED", ""
            self.trainer, self.installed = {}, False
        elif name != "trainer ended":
            self.away_until = self.now + (HOUR / 6 if name.endswith("while") else 1e9)

    def _blame(self, name: str) -> None:
        self.cause = name
        self.times[name] += 1

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stream: bool = False,
        stdin: str = "",
        limit: float | None = None,
    ) -> Done:
        """Answers as gcloud does."""
        assert limit is not None
        verb = next(word for word in ("create", "describe", "delete", "ssh") if word in argv)
        if self.random.random() < HANGS:
            self._blame_if_idle("gcloud hangs")
            self.sleep(limit)
            return Done(TIMED_OUT, errors=f"no answer in {limit:.0f} s")
        self.sleep(3)
        script = argv[-1]
        refusal = self._refusal("install" if "pip install" in script else verb)
        if refusal:
            self._blame_if_idle(refusal)
            return Done(1, errors=answer(refusal))
        if verb == "describe":
            return self._describe("queued-resources" in argv)
        if verb == "ssh":
            return self._ssh(argv, script)
        if verb == "create":
            self.resource, self.installed = "WAITING_FOR_RESOURCES", False
            self.served_at, self.away_until = (
                self.now + self.random.expovariate(1 / 1.5) * HOUR,
                0.0,
            )
        elif "queued-resources" in argv:
            self.resource, self.node, self.trainer = "", "", {}
        return Done(0)

    def _blame_if_idle(self, name: str) -> None:
        """Counts a fault; it has the lost time until training goes on, unless an event has it."""
        self.times[name] += 1
        if self.trainer.get("state") != "running" and self.cause not in EVENTS:
            self.cause = name

    def _refusal(self, what: str) -> str:
        for name, (chance, longest) in REFUSALS.get(what, {}).items():
            if self.streak[name] == 0 and self.random.random() < chance:
                self.streak[name] = self.random.randint(1, longest)
            if self.streak[name]:
                self.streak[name] -= 1
                return name
        return ""

    def _describe(self, of_request: bool) -> Done:
        state = self.resource if of_request else self.node
        if not state:
            return Done(1, errors=answer("not_there"))
        error = {"message": "There is no more capacity in the zone"}
        more = {"failedData": {"error": error}} if state == "FAILED" else {}
        return Done(0, json.dumps({"state": {"state": state, **more} if of_request else state}))

    def _ssh(self, argv: Sequence[str], script: str) -> Done:
        if not self.node:
            return Done(1, errors=answer("preempted_node"))
        if self.now < self.away_until and "--worker=all" in argv:
            self.sleep(350)
            return Done(LOST_CONNECTION, errors=answer("host_away"))
        if "pip install" in script:
            self.sleep(180)
            self.installed = True
        elif "worker start" in script:
            assert self.installed
            started = self.trainer.get("state") != "running"
            self.trainer = {"state": "running"}
            return Done(0, "\n".join([json.dumps({"started": started})] * 4))
        return Done(0, json.dumps(self.trainer))


def soak(seed: int) -> Soak:
    """Supervises a training from nothing to its end, and deletes the slice."""
    world = Soak(seed)
    cloud = Cloud(read_job(list(JOB)), world, world.sleep, lambda _: None, world.clock)
    supervise(cloud, away_minutes=20, idle_minutes=120, delete_after=True)
    return world


def table(world: Soak) -> str:
    """What went wrong, what was done, and what that cost."""
    lines = ["| fault | times | verdict | hours lost |", "| --- | ---: | --- | ---: |"]
    for name, verdict in VERDICTS.items():
        times = world.times[name] if name != "first request" else 1
        lines.append(f"| {name} | {times} | {verdict} | {world.lost[name]:.1f} |")
    hours = world.now / HOUR
    lines += [
        f"| **all** | {world.times.total()} | trained in {hours:.1f} hours | "
        f"{world.lost['all']:.1f} |",
        "",
        f"Trained {world.trained:.0f} hours in {hours:.1f}. Billed: {world.billed:.1f} hours of 16 "
        f"chips, {16 * world.billed:.0f} chip-hours; {world.billed - world.trained:.1f} hours of "
        "them without lasting progress. Nothing is left, so nothing more is billed.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(soak(seed=0)))
