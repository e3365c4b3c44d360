"""The slice of a job in Google Cloud: its state, what is done to it, and what it costs.

A slice that is gone or lost, and a refusal, count when the answer came twice.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from hyla_lm.errors import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.gcloud import (
    CloudError,
    Done,
    Runner,
    Verdict,
    detail_of,
    run_for_real,
    verdict_of,
)
from hyla_lm.tpu.job import Job

T = TypeVar("T")

# How long gcloud may take: to answer, to change something, and to connect to all hosts.
ASK_SECONDS, CHANGE_SECONDS, SSH_SECONDS = 120.0, 900.0, 600.0
CONFIRM_SECONDS = 20.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 10.0, 300.0
TRIES, BILL_TRIES, DELETE_TRIES = 4, 8, 40

BILLED = "{name} exists and is billed until it is deleted: {delete}."
QUEUED = (
    "{name} is {words} and keeps its place in the queue: nothing is billed until its turn comes, "
    "then it is. To give the place up: {delete}."
)
GONE = (
    "The machines of {name} are gone ({words}), so nothing is billed. To clear the rest: {delete}."
)
NOTHING_LEFT = "Nothing of {name} exists, so nothing is billed."
UNSEEN = "Whether {name} exists and is billed could not be seen ({why}). To delete it: {delete}."

_ATTEMPT = re.compile(r"SSH: Attempting to connect to worker (\d+)")


class State(Enum):
    """Whether the slice can be used."""

    ABSENT = "absent"
    ORPHAN = "a node without a request"  # made by another program, or half deleted
    QUEUED = "queued"
    STARTING = "starting"  # machines that are billed and not ready
    ACTIVE = "active"
    LOST = "lost"  # preempted, suspended or failed: it must be made again


LOST_REQUESTS = ("FAILED", "SUSPENDING", "SUSPENDED")
LOST_NODES = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "DELETING", "ABSENT")


@dataclass(frozen=True)
class Found:
    """A state, gcloud's words for it, and why the request failed, if it did."""

    state: State
    words: str
    failure: str = ""


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
        self.job, self.run, self.sleep, self.clock = job, run, sleep, clock
        self._say, self._said = say, ""

    def say(self, text: str) -> None:
        """Prints a line without secrets, unless it is the same as the last."""
        if text != self._said:
            self._say(self.job.hide(text))
        self._said = text

    def insist(self, action: Callable[[], T], tries: int = TRIES) -> T:
        """The result of an action, which is tried again after an error, with growing waits."""
        attempt, is_refused = 0, False
        while True:
            try:
                return action()
            except CloudError as error:
                attempt += 1
                is_final = error.verdict is Verdict.FINAL
                if attempt == tries or (is_final and is_refused):
                    raise
                is_refused = is_final
                self.say(f"{error} Trying again.")
                self.sleep(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (attempt - 1)))

    def find(self) -> Found:
        """The state of the slice; asks again where it is gone or lost."""
        found = self._find_once()
        while found.state in (State.ABSENT, State.ORPHAN, State.LOST):
            self.sleep(CONFIRM_SECONDS)
            before, found = found, self._find_once()
            if found.state is before.state:
                break
        return found

    def _find_once(self) -> Found:
        """The state, from those of the request and of its nodes."""
        answer = self._describe(commands.describe_resource(self.job))
        if answer is None:
            left = [node for node in self._nodes() if node != "ABSENT"]
            return Found(State.ORPHAN if left else State.ABSENT, (left or ["ABSENT"])[0])
        request = answer["state"]["state"]
        if request != "ACTIVE":
            state = State.LOST if request in LOST_REQUESTS else State.QUEUED
            error = answer["state"].get("failedData", {}).get("error", {})
            return Found(state, request, error.get("message", ""))
        nodes = self._nodes()
        lost = [node for node in nodes if node in LOST_NODES]
        others = [node for node in nodes if node != "READY"]
        state = State.LOST if lost else State.STARTING if others else State.ACTIVE
        return Found(state, f"ACTIVE, node {(lost or others or nodes)[0]}")

    def _nodes(self) -> list[str]:
        """The state of each node."""
        answers = [self._describe(commands.describe_node(self.job, n)) for n in self.job.nodes]
        return [answer["state"] if answer else "ABSENT" for answer in answers]

    def _describe(self, argv: Sequence[str]) -> dict[str, Any] | None:
        """What gcloud knows of a request or a node; raises CloudError for an odd answer."""
        done = self.run(argv, limit=ASK_SECONDS)
        if done.code and verdict_of(argv, done) is Verdict.MISSING:
            return None
        output = self._checked(argv, done).output
        with suppress(ValueError, TypeError, KeyError):
            answer: dict[str, Any] = json.loads(output)
            state = answer["state"]
            if isinstance(state["state"] if "queued-resources" in argv else state, str):
                return answer
        raise self.error(Verdict.AGAIN, f"gcloud: an answer that cannot be read ({output[:80]})")

    def create(self) -> None:
        """Queues the request."""
        argv = commands.create(self.job)
        self._checked(argv, self.run(argv, limit=CHANGE_SECONDS))

    def delete(self) -> None:
        """Deletes request and nodes, but those that are gone."""
        nodes = [commands.delete_node(self.job, node) for node in self.job.nodes]
        for argv in (commands.delete_resource(self.job), *nodes):
            done = self.run(argv, limit=CHANGE_SECONDS)
            if done.code and verdict_of(argv, done) is not Verdict.MISSING:
                self._checked(argv, done)

    def ssh(
        self,
        script: str,
        worker: str = "all",
        stream: bool = False,
        limit: float | None = SSH_SECONDS,
    ) -> str:
        """The output of a script on one worker or on all."""
        argvs = commands.ssh(self.job, script, worker)
        return "".join(
            self._checked(argv, self.run(argv, stream=stream, limit=limit)).output for argv in argvs
        )

    def ask_hosts(self, script: str) -> tuple[str, list[int]]:
        """What the hosts that answer print, and the numbers of the others."""
        output, away = "", []
        for index, argv in enumerate(commands.ssh(self.job, script)):
            done, hosts = self.run(argv, limit=SSH_SECONDS), self.job.hosts_of_slice
            if done.code and verdict_of(argv, done) is not Verdict.UNREACHED:
                self._checked(argv, done)
            output += done.output
            if done.code:
                # gcloud tries such a host again and again.
                tried = Counter(int(number) for number in _ATTEMPT.findall(done.errors))
                silent = [host for host, times in sorted(tried.items()) if times > 1]
                away += [index * hosts + host for host in silent or range(hosts)]
        return output, away

    def bill(self) -> str:
        """What exists of the slice, whether it costs, and how it is deleted."""
        job = self.job
        delete = f"hyla-lm tpu delete --name={job.name} --project={job.project} --zone={job.zone}"
        delete += f" --slices={job.slices}" if job.slices > 1 else ""
        texts = {State.ABSENT: NOTHING_LEFT, State.LOST: GONE, State.QUEUED: QUEUED}
        try:
            found = self.insist(self.find, BILL_TRIES)
        except (UserError, KeyboardInterrupt) as error:
            why = str(error).rstrip(".") or "interrupted"
            return UNSEEN.format(name=job.name, why=why, delete=delete)
        text = texts.get(found.state, BILLED)
        return text.format(name=job.name, words=found.words, delete=delete)

    def _checked(self, argv: Sequence[str], done: Done) -> Done:
        if done.code:
            raise self.error(verdict_of(argv, done), f"gcloud: {detail_of(done)}")
        return done

    def error(self, verdict: Verdict, sentence: str) -> CloudError:
        """An error about the slice, without secrets."""
        return CloudError(verdict, f"{self.job.hide(sentence)}.")


def leaving(cloud: Cloud, action: Callable[[], object], deletes: bool = False) -> None:
    """Does something, and in whatever way that ended `deletes` the slice and prints the bill.

    A second Ctrl-C ends the deletion, with the bill.
    """
    ended: BaseException | None = None
    try:
        action()
    except BaseException as error:
        ended = error
    try:
        if deletes:
            cloud.insist(cloud.delete, DELETE_TRIES)
    except UserError as error:
        if ended is not None:
            cloud.say(str(error))
        ended = ended or error
    finally:
        cloud.say(cloud.bill())
    if ended is not None:
        raise ended
