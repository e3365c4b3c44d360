"""Keeps a job going until it is done; reads all state from the cloud each time."""

from enum import Enum
from typing import Any

from hyla_lm.config import UserError
from hyla_lm.tpu import commands, operations
from hyla_lm.tpu.cloud import Cloud, CloudError, Kind, State
from hyla_lm.tpu.worker import PREEMPTED

LOOK_SECONDS = 60.0
FIRST_WAIT_SECONDS = 30.0
LONGEST_WAIT_SECONDS = 1800.0
MOST_ATTEMPTS = 20
MOST_FAILURES = 2
USER_MISTAKE = 2
TAIL_LINES = 40
PASSING = (Kind.CAPACITY, Kind.CONNECTION, Kind.NODE_LOST, Kind.BUSY, Kind.OTHER)


class Action(Enum):
    """The next action."""

    LOOK_LATER = "look later"
    RESUME = "resume"
    RESTART = "restart"
    FINISH = "finish"
    GIVE_UP = "give up"


def decide(state: State, trainer: dict[str, Any]) -> Action:
    """The next action, from the state of the slice and the trainer's status on worker 0."""
    if state is not State.ACTIVE:
        return Action.RESUME
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


def supervise(cloud: Cloud, wait_minutes: float, delete_after: bool = False) -> None:
    """Returns when the trainer has finished; raises UserError if the user must act."""
    cloud.job.check_run()
    try:
        _Supervisor(cloud, wait_minutes).watch()
    except UserError:
        _close(cloud, delete_after)
        raise
    _close(cloud, delete_after)


def _close(cloud: Cloud, delete_after: bool) -> None:
    if delete_after:
        operations.delete(cloud)
    else:
        cloud.say(operations.BILLED.format(name=cloud.job.name))


class _Supervisor:
    def __init__(self, cloud: Cloud, wait_minutes: float):
        self.cloud, self.wait_minutes = cloud, wait_minutes
        self.attempts, self.seen = 0, False

    def watch(self) -> None:
        while True:
            self.attempts += 1
            try:
                action = self._look()
                if action is Action.FINISH:
                    self.cloud.say(f"{self.cloud.job.name} has finished")
                    return
                self._do(action)
            except CloudError as error:
                self._wait_after(error)
            if self.attempts >= MOST_ATTEMPTS:
                raise UserError(
                    f"{self.cloud.job.name} did not train in {MOST_ATTEMPTS} attempts: "
                    "see its log with `logs`, then give the same command again."
                )

    def _look(self) -> Action:
        found = self.cloud.find()
        if found.state is State.ABSENT and self.seen:
            raise UserError(
                f"{self.cloud.job.name} was deleted by someone else: give the same command again "
                "if it shall go on."
            )
        self.seen = self.seen or found.state is not State.ABSENT
        return decide(found.state, self._trainer() if found.state is State.ACTIVE else {})

    def _trainer(self) -> dict[str, Any]:
        answers = operations.parse(self.cloud.ssh(commands.trainer_status(self.cloud.job), "0"))
        return answers[0] if answers else {}

    def _do(self, action: Action) -> None:
        if action is Action.LOOK_LATER:
            self.attempts = 0
            self.cloud.sleep(LOOK_SECONDS)
            return
        if action is Action.GIVE_UP:
            raise UserError(
                f"The trainer of {self.cloud.job.name} failed and a person must act; its log "
                f"ends:\n{self._tail()}"
            )
        self.cloud.say(f"{action.value}, attempt {self.attempts}")
        if action is Action.RESUME:
            self.seen = False
            operations.create(self.cloud, self.wait_minutes)
            self.seen = True
        else:
            # Where one host's trainer ended the others may still wait for it.
            self.cloud.ssh(commands.stop(self.cloud.job))
        operations.start(self.cloud)
        self.cloud.sleep(self._wait_seconds())

    def _tail(self) -> str:
        return self.cloud.ssh(commands.tail(self.cloud.job, TAIL_LINES, follow=False), "0")

    def _wait_after(self, error: CloudError) -> None:
        """Waits longer each time; raises again an error that waiting does not mend."""
        if error.kind not in PASSING:
            raise error
        self.cloud.say(f"{error} Trying again in {self._wait_seconds():.0f} s.")
        self.cloud.sleep(self._wait_seconds())

    def _wait_seconds(self) -> float:
        return min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (self.attempts - 1))
