"""Keeps a job going until it is done; reads all state from the cloud each time."""

from enum import Enum
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tpu import commands, operations
from hyla_lm.tpu.answers import TAKEN, UNREADABLE, Kind
from hyla_lm.tpu.cloud import Cloud, CloudError, Found, State
from hyla_lm.tpu.worker import PREEMPTED

LOOK_SECONDS = 60.0
FIRST_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 1800.0
# While machines are billed and do not train it looks more often.
LONGEST_BILLED_WAIT_SECONDS = 300.0
MOST_FAILURES = 2
MOST_UNKNOWN = 20
USER_MISTAKE = 2
TAIL_LINES = 6
# Waiting mends these.
PASSING = frozenset({Kind.AGAIN, Kind.UNREACHED, Kind.UNKNOWN})


class Action(Enum):
    """The next action."""

    LOOK_LATER = "look later"
    WAIT = "wait"
    RESUME = "resume"
    RESTART = "restart"
    FINISH = "finish"
    GIVE_UP = "give up"


def decide(state: State, trainer: dict[str, Any]) -> Action:
    """The next action, from the state of the slice and the trainer's status on worker 0."""
    if state is not State.ACTIVE:
        return Action.WAIT if state is State.WAITING else Action.RESUME
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


def supervise(
    cloud: Cloud, away_minutes: float, idle_minutes: float, delete_after: bool = False
) -> None:
    """Returns when the trainer has finished; raises UserError if the user must act.

    A slice with a host that is away for `away_minutes` is made again. Machines that are billed and
    do not train for `idle_minutes` end it.
    """
    cloud.job.check_run()
    try:
        _Supervisor(cloud, 60 * away_minutes, 60 * idle_minutes).watch()
    except BaseException:
        try:
            if delete_after:
                _delete_after_error(cloud)
        finally:  # a second Ctrl-C ends the deletion
            cloud.say(operations.bill(cloud))
        raise
    try:
        if delete_after:
            _delete_at_last(cloud)
    finally:
        cloud.say(operations.bill(cloud))


def _delete_after_error(cloud: Cloud) -> None:
    """Deletes the slice, and keeps the error that ended the training."""
    try:
        _delete_at_last(cloud)
    except UserError as error:
        cloud.say(str(error))


def _delete_at_last(cloud: Cloud) -> None:
    """Deletes the slice; goes on trying for some hours where waiting may help."""
    for attempt in range(MOST_UNKNOWN):
        try:
            cloud.delete()
            return
        except CloudError as error:
            if error.kind not in PASSING:
                raise
            cloud.say(str(error))
            cloud.sleep(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt))
    cloud.delete()


class _Supervisor:
    """What one supervisor remembers: since when what is amiss. It may be started anew."""

    def __init__(self, cloud: Cloud, away_seconds: float, idle_seconds: float):
        self.cloud, self.away_seconds, self.idle_seconds = cloud, away_seconds, idle_seconds
        self.attempt = self.unknown = 0
        # Whether the slice was seen, was made here, and answered here.
        self.seen = self.made = self.reached = False
        # A deletion may fail, and is then tried again before anything else.
        self.doomed = False
        self.unanswered: CloudError | None = None
        self.away_since: float | None = None
        self.idle_since: float | None = None
        self.last_words = ""

    def watch(self) -> None:
        while True:
            try:
                self._mend()
                found = self._look()
                trainer = self._trainer() if found.state is State.ACTIVE else {}
                action = decide(found.state, trainer)
                if action is Action.FINISH:
                    self.cloud.say(f"{self.cloud.job.name} has finished")
                    return
                self._do(action, found)
            except CloudError as error:
                self._after(error)

    def _mend(self) -> None:
        """Ends what is to be deleted, and a slice with a host that stays away."""
        if self.unanswered is not None and self._seconds_away() >= self.away_seconds:
            self._leave_hosts(self.unanswered)
        if self.doomed:
            self._delete()

    def _look(self) -> Found:
        found = self.cloud.find()
        if found.state is State.ABSENT and self.seen:
            raise UserError(
                f"{self.cloud.job.name} was deleted by someone else: give the same command again "
                "if it shall go on."
            )
        if found.state is State.ORPHAN:
            raise self.cloud.error(TAKEN, "")
        self.seen = found.state is not State.ABSENT
        if found.resource != "ACTIVE" or found.state is State.LOST:
            self.unanswered = self.away_since = self.idle_since = None
        return found

    def _trainer(self) -> dict[str, Any]:
        output = self.cloud.ssh(commands.trainer_status(self.cloud.job), "0")
        answers = operations.parse(output)
        if not answers:
            raise self.cloud.error(UNREADABLE, output.strip()[:80] or "nothing")
        return answers[0]

    def _do(self, action: Action, found: Found) -> None:
        if action is Action.LOOK_LATER:
            self.attempt = self.unknown = 0
            self._answers()
            self.idle_since = None
            self.cloud.sleep(LOOK_SECONDS)
        elif action is Action.WAIT:
            self._wait(found)
        elif action is Action.GIVE_UP:
            raise UserError(
                f"The trainer of {self.cloud.job.name} failed and a person must act; its log "
                f"ends:\n{self._tail()}"
            )
        elif action is Action.RESUME:
            self._make(found)
        else:
            self._restart()

    def _wait(self, found: Found) -> None:
        """Keeps the place in the queue; makes a slice again whose machines do not get ready."""
        words = operations.words(found)
        if words != self.last_words:
            self.cloud.say(f"{self.cloud.job.name} is {words}")
        self.last_words = words
        if found.resource == "ACTIVE":
            self._begin_idle()
        if found.resource == "ACTIVE" and self._seconds_away() >= self.away_seconds:
            self._remake(f"is {words}")
            return
        self.cloud.sleep(LOOK_SECONDS)

    def _make(self, found: Found) -> None:
        """Asks for a slice, instead of the one that was lost."""
        if found.state is State.LOST:
            self.cloud.say(f"{self.cloud.job.name} is {operations.words(found)}: making it again")
            self._delete()
            if self.made and found.resource == "FAILED":
                self.made = False
                raise operations.failure(self.cloud, found)
        try:
            self.cloud.create()
        except CloudError as error:
            if error.kind is not Kind.EXISTS:
                raise
            self.attempt += 1
            self.cloud.sleep(self._wait_seconds())
        self.made, self.last_words = True, ""
        self.cloud.sleep(FIRST_WAIT_SECONDS)

    def _delete(self) -> None:
        self.doomed = True
        self.seen = self.reached = False
        self.unanswered = self.away_since = self.idle_since = None
        self.cloud.delete()
        self.doomed = False

    def _answers(self) -> None:
        self.reached, self.unanswered, self.away_since = True, None, None

    def _restart(self) -> None:
        self._begin_idle()
        self.cloud.say(f"restart, attempt {self.attempt + 1}")
        # Where one host's trainer ended the others may still wait for it.
        self.cloud.ssh(commands.stop(self.cloud.job))
        operations.start(self.cloud)
        self._answers()
        self.attempt += 1
        self._check_idle("its trainer does not stay up")
        self.cloud.sleep(self._wait_seconds())

    def _remake(self, why: str) -> None:
        minutes = self._seconds_away() / 60
        self.cloud.say(f"{self.cloud.job.name} {why} for {minutes:.0f} minutes: making it again")
        self._delete()

    def _seconds_away(self) -> float:
        """How long the machines have been out of reach; the first call begins to count."""
        now = self.cloud.clock()
        self.away_since = now if self.away_since is None else self.away_since
        return now - self.away_since

    def _tail(self) -> str:
        return self.cloud.ssh(commands.tail(self.cloud.job, TAIL_LINES, follow=False), "0")

    def _after(self, error: CloudError) -> None:
        """Waits longer each time; raises again an error that waiting does not mend."""
        # A node may vanish between two commands, and quota is given back some time after a node.
        again = (Kind.ON_HOST, Kind.MISSING, *([Kind.QUOTA] if self.made else []))
        if error.kind not in PASSING and error.kind not in again:
            raise error
        self.unknown = self.unknown + 1 if error.kind is Kind.UNKNOWN else 0
        if self.unknown > MOST_UNKNOWN:
            raise error
        if error.kind is Kind.UNREACHED and not self.doomed:
            self.unanswered = error
            self._seconds_away()
        if error.kind is Kind.ON_HOST:
            self._begin_idle()
        self._check_idle(str(error))
        self.attempt += 1
        self.cloud.say(f"{error} Trying again in {self._wait_seconds():.0f} s.")
        self.cloud.sleep(self._wait_seconds())

    def _leave_hosts(self, error: CloudError) -> None:
        """Makes the slice again if some hosts are away; if all are it may be this machine that is.

        Then the training may go on unseen, and nothing is deleted.
        """
        if self.cloud.find().state is not State.ACTIVE:
            self.unanswered = None
            return
        _, away = self.cloud.ask_hosts("true")
        if not away:
            self._answers()
        elif len(away) < self.cloud.job.hosts or (self.reached and self.cloud.job.hosts == 1):
            self._remake(f"has hosts that do not answer ({', '.join(map(str, away))})")
        elif not self.reached or self._seconds_away() >= self.idle_seconds:
            raise UserError(f"{error} Its trainer may be running.")

    def _begin_idle(self) -> None:
        """The machines were seen without a training."""
        self.idle_since = self.cloud.clock() if self.idle_since is None else self.idle_since

    def _check_idle(self, why: str) -> None:
        if self.idle_since is None:
            return
        idle = self.cloud.clock() - self.idle_since
        if idle >= self.idle_seconds:
            raise UserError(
                f"{self.cloud.job.name} is billed and has not trained for {idle / 60:.0f} minutes: "
                f"{why}"
            )

    def _wait_seconds(self) -> float:
        longest = LONGEST_WAIT_SECONDS
        if self.idle_since is not None:
            longest = LONGEST_BILLED_WAIT_SECONDS
        return min(longest, FIRST_WAIT_SECONDS * 2 ** min(self.attempt - 1, 10))
