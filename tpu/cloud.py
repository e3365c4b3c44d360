"""The slice of a job in Google Cloud: its state, and what is done to it."""

import json
import shlex
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.answers import UNREADABLE, Answer, Kind, answer_of, detail_of, silent_hosts
from hyla_lm.tpu.job import Job
from hyla_lm.tpu.programs import TIMED_OUT, Done, Runner, run_for_real

# gcloud itself tries ten times, five seconds apart, before it gives up with 255.
CONNECTION_WAITS = (10.0, 20.0, 40.0, 80.0)
ASK_WAITS = (10.0, 20.0, 40.0, 80.0)
BUSY_WAITS = (15.0, 30.0, 60.0, 120.0)
# One answer of the API is not believed: the same request is sent again soon.
ASK_AGAIN = frozenset({Kind.AGAIN, Kind.UNREACHED})
POLL_SECONDS = 20.0
# How long gcloud may take: to answer, to change something, and to connect to all hosts.
ASK_SECONDS, CHANGE_SECONDS, SSH_SECONDS = 120.0, 900.0, 600.0


class CloudError(UserError):
    """A refusal or failure of Google Cloud, with what can be done about it."""

    def __init__(self, kind: Kind, sentence: str):
        super().__init__(sentence)
        self.kind = kind


class State(Enum):
    """Whether the slice can be used.

    A LOST slice, preempted, suspended or failed, must be made again. An ORPHAN is a node without a
    request.
    """

    ABSENT = "absent"
    ORPHAN = "orphan"
    WAITING = "waiting"
    ACTIVE = "active"
    LOST = "lost"


RESOURCE_STATES = {
    **dict.fromkeys(("FAILED", "SUSPENDING", "SUSPENDED"), State.LOST),
    **dict.fromkeys(("CREATING", "ACCEPTED", "PROVISIONING"), State.WAITING),
    **dict.fromkeys(("WAITING_FOR_RESOURCES", "DELETING", "STATE_UNSPECIFIED"), State.WAITING),
}
LOST_NODES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "DELETING", "ABSENT")


@dataclass(frozen=True)
class Found:
    """A state, gcloud's words for it, and the error that it was read from, if any."""

    state: State
    resource: str
    node: str = "ABSENT"
    error: str = ""


NOTHING = Found(State.ABSENT, "ABSENT")


class Cloud:
    """The slice of one job in Google Cloud; tests replace `sleep`, `say` and `clock`."""

    def __init__(
        self,
        job: Job,
        run: Runner = run_for_real,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
        clock: Callable[[], float] = time.monotonic,
    ):
        self.job, self.run, self.sleep, self.say, self.clock = job, run, sleep, say, clock

    def find(self) -> Found:
        """The state of the slice, from those of the queued resource and of its nodes."""
        answer = self._describe(commands.describe_resource(self.job))
        if answer is None:
            left = [name for name in self._nodes() if name != "ABSENT"]
            return Found(State.ORPHAN, "ABSENT", left[0]) if left else NOTHING
        state = answer.get("state", {})
        name = state.get("state", "STATE_UNSPECIFIED")
        if name != "ACTIVE":
            error = state.get("failedData", {}).get("error", {}).get("message", "")
            return Found(RESOURCE_STATES.get(name, State.WAITING), name, error=error)
        nodes = self._nodes()
        lost = [node for node in nodes if node in LOST_NODES]
        if lost:
            return Found(State.LOST, name, lost[0])
        others = [node for node in nodes if node != "READY"]
        return Found(State.WAITING if others else State.ACTIVE, name, (others or nodes)[0])

    def _nodes(self) -> list[str]:
        """The state of each node."""
        answers = [self._describe(commands.describe_node(self.job, n)) for n in self.job.nodes]
        return [
            answer.get("state", "STATE_UNSPECIFIED") if answer else "ABSENT" for answer in answers
        ]

    def _describe(self, argv: Sequence[str]) -> dict[str, Any] | None:
        done = self._again(argv, ASK_AGAIN, ASK_WAITS, limit=ASK_SECONDS)
        if done.code and _kind(argv, done) is Kind.MISSING:
            return None
        output = self._checked(argv, done).output
        try:
            return dict(json.loads(output))
        except (ValueError, TypeError):
            raise self.error(UNREADABLE, output[:80] or "nothing", argv) from None

    def create(self) -> None:
        """Queues the request."""
        argv = commands.create(self.job)
        self._checked(argv, self.run(argv, limit=CHANGE_SECONDS))

    def delete(self) -> None:
        """Deletes nodes and request; ignores those already gone and retries busy ones."""
        nodes = [commands.delete_node(self.job, node) for node in self.job.nodes]
        for argv in (commands.delete_resource(self.job), *nodes):
            done = self._again(argv, ASK_AGAIN, BUSY_WAITS, limit=CHANGE_SECONDS)
            if done.code and _kind(argv, done) is not Kind.MISSING:
                self._checked(argv, done)

    def ssh(
        self,
        script: str,
        worker: str = "all",
        stream: bool = False,
        limit: float | None = SSH_SECONDS,
    ) -> str:
        """The output of a script on one worker or on all; retries a lost connection."""
        output = ""
        for argv in commands.ssh(self.job, script, worker):
            done = self.run(argv, stream=stream, limit=limit)
            for wait in CONNECTION_WAITS:
                if not done.code or done.code == TIMED_OUT or _kind(argv, done) not in ASK_AGAIN:
                    break
                done = self._later(argv, done, wait, stream=stream, limit=limit)
            output += self._checked(argv, done).output
        return output

    def ask_hosts(self, script: str) -> tuple[str, list[int]]:
        """What the hosts that answer print, and the numbers of the others, after one attempt."""
        output, away = "", []
        for node, argv in enumerate(commands.ssh(self.job, script)):
            done, first = self.run(argv, limit=SSH_SECONDS), node * self.job.slice.hosts
            if done.code and _kind(argv, done) is not Kind.UNREACHED:
                self._checked(argv, done)
            output += done.output
            if done.code:
                silent = silent_hosts(done.errors) or range(self.job.slice.hosts)
                away += [first + host for host in sorted(silent)]
        return output, away

    def _again(
        self, argv: Sequence[str], kinds: Collection[Kind], waits: Sequence[float], limit: float
    ) -> Done:
        """Runs a command, and runs it again after errors of these kinds."""
        done = self.run(argv, limit=limit)
        for wait in waits:
            if not done.code or _kind(argv, done) not in kinds:
                break
            done = self._later(argv, done, wait, limit=limit)
        return done

    def _later(self, argv: Sequence[str], done: Done, wait: float, **options: Any) -> Done:
        self.say(f"{self.job.name}: {detail_of(done.errors)}; trying again in {wait:.0f} s")
        self.sleep(wait)
        return self.run(argv, **options)

    def _checked(self, argv: Sequence[str], done: Done) -> Done:
        if done.code:
            errors = done.errors or f"it ended with status {done.code}"
            raise self.error(answer_of(argv, done.code, errors), errors, argv)
        return done

    def error(self, answer: Answer, errors: str, argv: Sequence[str] = ()) -> CloudError:
        """The error as a sentence for the user."""
        sentence = answer.sentence.format(
            name=self.job.name,
            project=self.job.project,
            zone=self.job.zone,
            accelerator=self.job.slice.accelerator,
            valid_for=self.job.valid_for,
            detail=detail_of(errors),
            attempts=1 + len(CONNECTION_WAITS),
            command=shlex.join(argv),
        )
        return CloudError(answer.kind, sentence)


def _kind(argv: Sequence[str], done: Done) -> Kind:
    return answer_of(argv, done.code, done.errors).kind
