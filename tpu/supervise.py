"""Asks for a slice and keeps a job on it going until it is done; all state is in the cloud."""

import json
from contextlib import suppress
from enum import Enum
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.cloud import Cloud, Found, State, leaving
from hyla_lm.tpu.gcloud import CloudError, Verdict, verdict_in
from hyla_lm.tpu.worker import PREEMPTED

LOOK_SECONDS = 60.0
FIRST_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 1800.0
# While machines are billed and do not train it looks more often.
LONGEST_BILLED_WAIT_SECONDS = 300.0
# A slice with a host that is away for so long is made again.
AWAY_SECONDS = 1200.0
MOST_FAILURES = 2
USER_MISTAKE = 2
TAIL_LINES = 6


class Action(Enum):
    """What is done about a trainer."""

    LOOK_LATER = "look later"
    RESTART = "restart"
    FINISH = "finish"
    GIVE_UP = "give up"


def decide(trainer: dict[str, Any]) -> Action:
    """The next action, from the trainer's status on worker 0 of an active slice."""
    if trainer.get("state") == "running":
        return Action.LOOK_LATER
    if "state" not in trainer:
        return Action.RESTART
    code = trainer.get("code")
    if code == 0:
        return Action.FINISH
    if code == PREEMPTED:
        return Action.RESTART
    # A trainer that died unseen is counted as a failure when it is started again.
    failures = trainer.get("failures", 0) + (trainer["state"] == "died")
    stuck = code == USER_MISTAKE or failures >= MOST_FAILURES
    return Action.GIVE_UP if stuck else Action.RESTART


def supervise(cloud: Cloud, idle_minutes: float, delete_after: bool = False) -> None:
    """Returns when the trainer has finished; raises UserError if a person must act.

    Machines that are billed and do not train for `idle_minutes` end it.
    """
    supervisor = _Supervisor(cloud, 60 * idle_minutes)
    leaving(cloud, supervisor.watch, delete_after)


def read_status(output: str) -> list[dict[str, Any]]:
    """The lines of JSON in the hosts' output, in the order of the hosts' names.

    What a login prints, a line that was cut off, and what no worker writes are left out.
    """
    answers = []
    for line in output.splitlines():
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and _is_status(answer):
                answers.append(answer)
    return sorted(answers, key=lambda answer: str(answer.get("host", "")))


def _is_status(answer: dict[str, Any]) -> bool:
    if answer.get("state") == "exited":
        return isinstance(answer.get("code"), int) and isinstance(answer.get("failures", 0), int)
    return answer.get("state", "running") in ("running", "died")


class _Supervisor:
    """What one supervisor remembers: since when what is amiss. It may be started anew."""

    def __init__(self, cloud: Cloud, idle_seconds: float):
        self.cloud, self.idle_seconds = cloud, idle_seconds
        self.attempt = 0
        # Whether the slice ever had machines, was last seen, and was last seen training.
        self.existed = self.is_there = self.is_training = False
        # Whether a host has answered here; whether the last answer was one that waiting keeps.
        self.reached = self.refused = False
        self.words = ""
        # Whether it is deleted here, which may take several tries.
        self.clears = False
        self.away_since: float | None = None
        self.idle_since: float | None = None

    def watch(self) -> None:
        """Returns when the job is done."""
        is_done = False
        while not is_done:
            try:
                is_done = self._step()
                self.refused = False
            except CloudError as error:
                self._wait_after(error)

    def _step(self) -> bool:
        """Looks, and does what is to be done next; returns whether nothing is."""
        found = self._look()
        if found.state is State.ABSENT:
            self.cloud.create()
            self.clears = False
            self.cloud.sleep(FIRST_WAIT_SECONDS)
        elif found.state is State.LOST:
            self._replace(found)
        elif found.state is State.QUEUED:
            self.cloud.sleep(LOOK_SECONDS)
        elif found.state is State.STARTING:
            self._wait_for_machines(found)
        elif self.away_since is not None and self._seconds_away() >= AWAY_SECONDS:
            self._replace_hosts()
        else:
            return self._train()
        return False

    def _look(self) -> Found:
        found = self.cloud.find()
        name = self.cloud.job.name
        if found.state is State.ABSENT and self.is_there and not self.clears:
            raise UserError(f"{name} was deleted by someone else: to go on, repeat the command.")
        if found.state is State.ORPHAN:
            sentence = f"{name} is {State.ORPHAN.value}: choose another --name, or delete it"
            raise self.cloud.error(Verdict.FINAL, sentence)
        self.is_there = found.state is not State.ABSENT
        if self.is_there and found.words != self.words:
            self.cloud.say(f"{name} is {found.words}")
        self.words = found.words
        if found.state is not State.ACTIVE:
            self.is_training = False
        if found.state in (State.ACTIVE, State.STARTING):
            self.existed = True
        else:
            self.away_since = self.idle_since = None
        return found

    def _replace(self, found: Found) -> None:
        """Clears a slice that is lost; one whose request failed is asked for after a wait."""
        self._delete()
        if found.words != "FAILED":
            self.existed = True
        else:
            sentence = f"{self.cloud.job.name} is FAILED ({found.failure or 'no reason given'})"
            error = self.cloud.error(verdict_in(found.failure), sentence)
            raise UserError(str(error)) if self._is_final(error) else error

    def _wait_for_machines(self, found: Found) -> None:
        self._begin_idle()
        if self._seconds_away() < AWAY_SECONDS:
            self.cloud.sleep(LOOK_SECONDS)
            return
        self.cloud.say(f"{self.cloud.job.name} is still {found.words}: making it again")
        self._delete()

    def _replace_hosts(self) -> None:
        """Makes the slice again if some hosts stay away.

        If all are it may be this machine that is: the training may go on unseen, and the slice is
        not deleted.
        """
        away = self.cloud.ask_hosts("true")[1]
        self.cloud.sleep(FIRST_WAIT_SECONDS)
        away = [host for host in self.cloud.ask_hosts("true")[1] if host in away]
        if 0 < len(away) < self.cloud.job.hosts:
            hosts = ", ".join(str(host) for host in away)
            self.cloud.say(f"{self.cloud.job.name}: hosts {hosts} do not answer: making it again")
            self._delete()
        elif away:
            raise self.cloud.error(Verdict.UNREACHED, "no host answers; its trainer may be running")
        else:
            self._answered()

    def _train(self) -> bool:
        """Starts the trainer if it does not run; returns whether it has finished."""
        output = self.cloud.ssh(commands.trainer_status(self.cloud.job), "0")
        statuses = read_status(output)
        if not statuses:
            said = output.strip()[:80] or "nothing"
            raise self.cloud.error(
                Verdict.ON_HOST, f"the status of worker 0 cannot be read ({said})"
            )
        action = decide(statuses[0])
        self.reached, self.is_training = True, action is Action.LOOK_LATER
        if action is Action.LOOK_LATER:
            self.attempt, self.clears, self.idle_since = 0, False, None
            self._answered()
            self.cloud.sleep(LOOK_SECONDS)
        elif action is Action.GIVE_UP:
            tail = self.cloud.ssh(commands.tail(self.cloud.job, TAIL_LINES, follow=False), "0")
            raise UserError(
                f"The trainer of {self.cloud.job.name} failed and a person must act; its log "
                f"ends:\n{self.cloud.job.hide(tail)}"
            )
        elif action is Action.RESTART:
            self._restart()
        else:
            self.cloud.say(f"{self.cloud.job.name} has finished")
        return action is Action.FINISH

    def _restart(self) -> None:
        self._begin_idle()
        cloud, job = self.cloud, self.cloud.job
        # Where one host's trainer ended the others may still wait for it.
        cloud.ssh(commands.stop(job))
        cloud.ssh(commands.install(job), limit=commands.INSTALL_SECONDS)
        answers = read_status(cloud.ssh(commands.start(job)))
        started = sum(answer.get("started") is True for answer in answers)
        cloud.say(f"trainer started on {started} hosts, running before on {len(answers) - started}")
        self._answered()
        self.attempt += 1
        self._check_idle("its trainer does not stay up")
        self.cloud.sleep(self._wait_seconds())

    def _delete(self) -> None:
        self.clears, self.idle_since = True, None
        self.cloud.insist(self.cloud.delete)
        self.is_training = self.reached = False
        self.away_since = None

    def _wait_after(self, error: CloudError) -> None:
        """Waits longer each time; raises again what waiting does not mend, when it comes twice.

        While the slice trains nothing that Google says ends the supervision.
        """
        is_final = self._is_final(error)
        if is_final and self.refused and not self.is_training:
            raise error
        self.refused = is_final
        if error.verdict is Verdict.UNREACHED:
            self._seconds_away()
        if error.verdict in (Verdict.UNREACHED, Verdict.ON_HOST):
            self._begin_idle()
        elif self.is_training:  # it may train on, out of sight
            self.idle_since = None
        self._check_idle(str(error))
        self.attempt += 1
        self.cloud.say(f"{error} Trying again.")
        self.cloud.sleep(self._wait_seconds())

    def _is_final(self, error: CloudError) -> bool:
        """Whether waiting does not mend it. Quota of a slice that is gone comes back late."""
        is_quota = error.verdict is Verdict.QUOTA and not self.existed
        return is_quota or error.verdict is Verdict.FINAL

    def _answered(self) -> None:
        self.reached, self.away_since = True, None

    def _seconds_away(self) -> float:
        """How long machines have been out of reach; the first call begins to count."""
        now = self.cloud.clock()
        self.away_since = now if self.away_since is None else self.away_since
        return now - self.away_since

    def _begin_idle(self) -> None:
        """The machines were seen without a training."""
        self.idle_since = self.cloud.clock() if self.idle_since is None else self.idle_since

    def _check_idle(self, why: str) -> None:
        if self.idle_since is None:
            return
        idle = self.cloud.clock() - self.idle_since
        # Machines that never answered may not be reached from here at all.
        limit = self.idle_seconds if self.reached else min(self.idle_seconds, AWAY_SECONDS)
        if idle >= limit:
            raise UserError(
                f"{self.cloud.job.name} is billed and was not seen training for {idle / 60:.0f} "
                f"minutes: {why}"
            )

    def _wait_seconds(self) -> float:
        longest = LONGEST_WAIT_SECONDS
        if self.idle_since is not None:
            longest = LONGEST_BILLED_WAIT_SECONDS
        return min(longest, FIRST_WAIT_SECONDS * 2 ** min(self.attempt - 1, 10))
