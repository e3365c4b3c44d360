"""Weeks of a training in seconds: a cloud with a clock of its own, and random faults."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hyla_lm.cli.parser import parse
from hyla_lm.tpu import cli
from hyla_lm.tpu.cloud import Cloud
from hyla_lm.tpu.gcloud import LOST_CONNECTION, TIMED_OUT, Done
from hyla_lm.tpu.supervise import supervise
from tests.tpu.answers import BUSY, FINAL, HOST_AWAY, NOT_THERE, PASSING, PIP_FAILED, PREEMPTED

HOUR = 3600.0
TRAINING_HOURS, CHECKPOINT_HOURS, MOST_HOURS = 180.0, 0.25, 2000.0
JOB = (
    *("supervise", "--name=hyla", "--project=my-project", "--zone=us-west4-a", "--spot"),
    *("--repository=https://example.com/hyla_lm.git", f"--revision={'0' * 40}"),
    *("--gin_file=gin/a.gin", "--workdir=gs://b/run"),
)
# Hours of training between two, on average.
EVENTS = {
    **{"preempted": 14.0, "host away": 35.0, "host away a while": 25.0, "trainer ended": 20.0},
    "killed before the join": 30.0,
}


def refused(text: str) -> Done:
    return Done(1, errors=text)


# What a command gets instead of its own answer: how often, and at most how many times in a row.
FAULTS: dict[str, dict[str, tuple[float, int, Done]]] = {
    "describe": {
        "read rate": (0.004, 6, refused(PASSING["read_rate"])),
        "unavailable": (0.003, 3, refused(PASSING["unavailable"])),
        "offline": (0.002, 12, refused(PASSING["offline"])),
        "token error": (0.003, 1, refused(FINAL["revoked"])),
        "not found": (0.001, 1, refused(NOT_THERE)),
        "null": (0.003, 1, Done(0, '{"state": null}')),
        "no JSON": (0.003, 1, Done(0, "{half a line")),
    },
    "create": {
        "write rate": (0.2, 6, refused(PASSING["write_rate"])),
        "no capacity": (0.3, 3, refused(PASSING["no_capacity"])),
        "retriable": (0.15, 2, refused(PASSING["retriable"])),
    },
    "delete": {"busy": (0.3, 2, refused(BUSY))},
    "install": {"pip": (0.2, 3, refused(PIP_FAILED))},
    "status": {
        "half a line": (0.01, 1, Done(0, '{"state": "runn')),
        "banner": (0.01, 1, Done(0, "{welcome}\n")),
        "null of a trainer": (0.01, 1, Done(0, '{"state": null}')),
    },
}
HANGS = 0.002


class Soak:
    """A slice of four hosts, the training on it, and what goes wrong with both."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.now, self.trained, self.saved, self.billed = 0.0, 0.0, 0.0, 0.0
        self.resource, self.node, self.served_at = "", "", 0.0
        self.away_until, self.fails_at, self.installed = 0.0, 0.0, False
        self.trainer: dict[str, Any] = {}
        self.times, self.streak = Counter[str](), Counter[str]()
        self.next = {name: self.random.expovariate(1 / mean) for name, mean in EVENTS.items()}
        self.said: list[str] = []
        self.interrupt_at, self.is_interrupted = float("inf"), False

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
        if self.now >= self.interrupt_at:
            self.interrupt_at, self.is_interrupted = float("inf"), True
            raise KeyboardInterrupt
        self.billed += hours if self.node else 0
        if self.resource == "WAITING_FOR_RESOURCES" and self.now >= self.served_at:
            failed = self.random.random() < 0.1
            self.resource, self.node = ("FAILED", "") if failed else ("ACTIVE", "READY")
        if self.trainer.get("state") != "running":
            return
        if self.fails_at:  # the others wait in vain
            if self.now >= self.fails_at:
                self.trainer, self.fails_at = {"state": "exited", "code": 69, "failures": 1}, 0.0
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
        self.times[name] += 1
        self.trained = self.saved
        code = self.random.choice((1, 69, 75, 134, 137))
        self.trainer = {"state": "exited", "code": code, "failures": 0}
        if name == "preempted":
            self.resource, self.node = "SUSPENDED", ""
            self.trainer, self.installed = {}, False
        elif name == "killed before the join":
            self.trainer, self.fails_at = {"state": "running"}, self.now + 300
        elif name != "trainer ended":
            self.away_until = self.now + (HOUR / 6 if name.endswith("while") else 1e9)

    def __call__(self, argv: Sequence[str], *, limit: float | None = None, **_: object) -> Done:
        """Answers as gcloud does."""
        assert limit is not None
        verb = next(word for word in ("create", "describe", "delete", "ssh") if word in argv)
        if self.random.random() < HANGS:
            self.times["hangs"] += 1
            self.sleep(limit)
            return Done(TIMED_OUT, errors=f"no answer in {limit:.0f} s")
        self.sleep(3)
        script = argv[-1]
        scripts = {"pip install": "install", 'worker" status': "status"}
        verb = next((name for words, name in scripts.items() if words in script), verb)
        if (fault := self._fault(verb)) is not None:
            return fault
        if verb == "describe":
            return self._describe("queued-resources" in argv)
        if verb == "create":
            self.resource, self.installed = "WAITING_FOR_RESOURCES", False
            self.served_at = self.now + self.random.expovariate(1 / 1.5) * HOUR
            self.away_until = 0.0
        elif verb != "delete":
            return self._ssh(argv, script)
        elif "queued-resources" in argv:
            assert self.trainer.get("state") != "running" or self.is_interrupted, "it trains"
            self.resource, self.node, self.trainer = "", "", {}
        return Done(0)

    def _fault(self, verb: str) -> Done | None:
        for name, (chance, longest, answer) in FAULTS.get(verb, {}).items():
            if self.streak[name] == 0 and self.random.random() < chance:
                self.streak[name] = self.random.randint(1, longest)
            if self.streak[name]:
                self.streak[name] -= 1
                self.times[name] += 1
                return answer
        return None

    def _describe(self, of_request: bool) -> Done:
        state = self.resource if of_request else self.node
        if not state:
            return refused(NOT_THERE)
        return Done(0, json.dumps({"state": {"state": state} if of_request else state}))

    def _ssh(self, argv: Sequence[str], script: str) -> Done:
        if not self.node:
            return refused(PREEMPTED)
        if self.now < self.away_until and "--worker=all" in argv:
            self.sleep(350)
            return Done(LOST_CONNECTION, errors=HOST_AWAY)
        if "pip install" in script:
            self.sleep(180)
            self.installed = True
        elif "worker start" in script:
            assert self.installed
            started = self.trainer.get("state") != "running"
            self.trainer = {"state": "running"}
            return Done(0, "\n".join([json.dumps({"started": started})] * 4))
        return Done(0, json.dumps(self.trainer))


def soak(seed: int, interrupt_at: float = float("inf")) -> Soak:
    """Supervises a training from nothing to its end, and deletes the slice."""
    world = Soak(seed)
    world.interrupt_at = interrupt_at
    job = cli.job_of(*parse(cli.parser(), JOB))
    cloud = Cloud(job, world, world.sleep, world.said.append, world.clock)
    try:
        supervise(cloud, idle_minutes=120, delete_after=True)
    except KeyboardInterrupt:
        world.said.append("interrupted")
    return world
