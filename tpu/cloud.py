"""Runs gcloud commands, reads states and classifies errors."""

import json
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from hyla_lm.config import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.job import Job

LOST_CONNECTION = 255
OWN_ERROR = "ERROR: (gcloud"
CHATTER = ("#####", "SSH: ", "Using ssh batch size")
# gcloud itself tries ten times, five seconds apart, before it gives up with 255.
CONNECTION_WAITS = (10.0, 20.0, 40.0, 80.0)
BUSY_WAITS = (15.0, 30.0, 60.0, 120.0)
POLL_SECONDS = 20.0
SECRET_BYTES = 32
MAKE_SECRET = f"python3 -c 'import secrets; print(secrets.token_hex({SECRET_BYTES}))'"


class Kind(Enum):
    """Kinds of gcloud errors, with the words that identify them; the first match counts."""

    ZONE = r"[Ll]ocation .*(not found|invalid|unsupported)|Unexpected location"
    MISSING = r"NOT_FOUND|was not found"
    EXISTS = r"ALREADY_EXISTS|already exists"
    NODE_LOST = r"has terminal state|cannot be currently connected to"
    CAPACITY = r"no more capacity|[Ii]nsufficient .*capacity|RESOURCE_POOL_EXHAUSTED|stockout"
    QUOTA = r"[Qq]uota|RESOURCE_EXHAUSTED"
    API_OFF = r"SERVICE_DISABLED|has not been used in project|it is disabled"
    SIGNED_OUT = r"gcloud auth login|[Rr]eauthentication|active account selected"
    PERMISSION = r"PERMISSION_DENIED|[Pp]ermission|\b403\b|Forbidden"
    BUSY = r"FAILED_PRECONDITION|while in state"
    INVALID = r"INVALID_ARGUMENT|invalid choice|unrecognized arguments"
    CONNECTION = r"return code \[255\]"
    OTHER = r""
    REMOTE = r"(?!)"


ADVICE = {
    Kind.ZONE: "{zone} is no zone for TPUs of {project} ({detail}): change --zone.",
    Kind.MISSING: "{name} does not exist in {zone}: `create` makes it.",
    Kind.EXISTS: "The name {name} is taken in {zone}: choose another --name, or `delete` it.",
    Kind.NODE_LOST: "The machines of {name} were taken away: `resume` makes them again.",
    Kind.CAPACITY: (
        "{zone} has no free {accelerator} ({detail}): try later, another --zone or "
        "--accelerator-type, or `supervise`, which goes on trying."
    ),
    Kind.QUOTA: (
        "{project} has no quota for this {accelerator} in {zone} ({detail}): ask for more under "
        "IAM & Admin > Quotas, or change --spot, --zone or --accelerator-type."
    ),
    Kind.API_OFF: (
        "The TPU API is off in {project}: "
        "run gcloud services enable tpu.googleapis.com --project={project}."
    ),
    Kind.SIGNED_OUT: "gcloud is not signed in: run gcloud auth login.",
    Kind.PERMISSION: (
        "You may not do this in {project} ({detail}): ask its owner for roles/tpu.admin and "
        "roles/iam.serviceAccountUser, or change --project."
    ),
    Kind.BUSY: "{name} is between two states ({detail}): try again in some minutes.",
    Kind.INVALID: "gcloud refuses the request ({detail}): change that option.",
    Kind.CONNECTION: (
        "No SSH connection to {name} after {attempts} attempts: check that the network lets port "
        "22 in and that ssh-add ~/.ssh/google_compute_engine has been run."
    ),
    Kind.REMOTE: (
        "A command failed on a host of {name} ({detail}): mend that and give the same command "
        "again."
    ),
    Kind.OTHER: "gcloud failed ({detail}): the command was {command}.",
}


class CloudError(UserError):
    """A refusal or failure of Google Cloud, with its kind."""

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


@dataclass(frozen=True)
class Done:
    """Status and output of a finished command."""

    code: int
    output: str = ""
    errors: str = ""


class Runner(Protocol):
    """Runs commands, or only prints them."""

    def __call__(self, argv: Sequence[str], *, stream: bool = False, stdin: str = "") -> Done: ...


def run_for_real(argv: Sequence[str], *, stream: bool = False, stdin: str = "") -> Done:
    """Runs a command; with `stream` its output goes to the terminal instead of being kept."""
    kept = None if stream else subprocess.PIPE
    try:
        done = subprocess.run(argv, input=stdin, text=True, stdout=kept, stderr=kept, check=False)
    except FileNotFoundError:
        raise UserError(f"{argv[0]} is not on PATH: install it, as tpu/README.md says.") from None
    return Done(done.returncode, done.stdout or "", done.stderr or "")


class Rehearsal:
    """Prints each command and answers like a cloud without errors.

    A secret on standard input is not printed, but a command that makes another.
    """

    def __init__(self, exists: bool):
        self.exists = exists

    def __call__(self, argv: Sequence[str], *, stream: bool = False, stdin: str = "") -> Done:
        print(f"{MAKE_SECRET} | {shlex.join(argv)}" if stdin else shlex.join(argv))
        words = argv[argv.index("tpus") + 1 :]
        if words[:2] == ["queued-resources", "create"] or words[1] == "delete":
            self.exists = words[1] == "create"
        if words[1] == "ssh":
            return Done(0, json.dumps({"state": "exited", "code": 0}))
        if words[1] != "describe":
            return Done(0)
        if not self.exists:
            return Done(1, errors="NOT_FOUND")
        is_node = words[0] == "tpu-vm"
        return Done(0, json.dumps({"state": "READY" if is_node else {"state": "ACTIVE"}}))


def classify(argv: Sequence[str], done: Done) -> Kind:
    """The kind of error that a gcloud command ended with."""
    if done.code == LOST_CONNECTION:
        return Kind.CONNECTION
    own = done.errors.find(OWN_ERROR)
    if "ssh" in argv and own < 0:
        return Kind.REMOTE
    return kind_of(done.errors[max(own, 0) :])


def kind_of(errors: str) -> Kind:
    """The first kind whose words occur in the text."""
    return next(kind for kind in Kind if re.search(kind.value, errors))


def detail_of(errors: str) -> str:
    """The most informative line of gcloud's stderr, without prefix and braces."""
    message = re.search(r'"message": "((?:[^"\\]|\\.)*)"', errors)
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(CHATTER)]
    named = [line for line in lines if line.startswith("ERROR:")]
    line = message[1].replace('\\"', '"') if message else (named or lines or ["no message"])[-1]
    return re.sub(r"^ERROR: (\([\w.-]+\) )?", "", line).strip().rstrip(".")


class Cloud:
    """The slice of one job in Google Cloud; tests replace `sleep` and `say`."""

    def __init__(
        self,
        job: Job,
        run: Runner = run_for_real,
        sleep: Callable[[float], None] = time.sleep,
        say: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
    ):
        self.job, self.run, self.sleep, self.say = job, run, sleep, say

    def find(self) -> Found:
        """The state of the slice, from those of the queued resource and of its node."""
        answer = self._describe(commands.describe_resource(self.job))
        if answer is None:
            node = self._describe(commands.describe_node(self.job))
            return Found(State.ORPHAN, "ABSENT", node["state"]) if node else NOTHING
        state = answer.get("state", {})
        name = state.get("state", "STATE_UNSPECIFIED")
        if name != "ACTIVE":
            error = state.get("failedData", {}).get("error", {}).get("message", "")
            return Found(RESOURCE_STATES.get(name, State.WAITING), name, error=error)
        node = self._describe(commands.describe_node(self.job)) or {"state": "ABSENT"}
        if node["state"] in LOST_NODES:
            return Found(State.LOST, name, node["state"])
        ready = node["state"] == "READY"
        return Found(State.ACTIVE if ready else State.WAITING, name, node["state"])

    def _describe(self, argv: Sequence[str]) -> dict[str, Any] | None:
        done = self.run(argv)
        if done.code and classify(argv, done) is Kind.MISSING:
            return None
        return json.loads(self._checked(argv, done).output)

    def create(self) -> None:
        """Queues the request."""
        argv = commands.create(self.job)
        self._checked(argv, self.run(argv, stdin=secrets.token_hex(SECRET_BYTES)))

    def delete(self) -> None:
        """Deletes node and request; ignores those already gone and retries busy ones."""
        for argv in (commands.delete_resource(self.job), commands.delete_node(self.job)):
            done = self.run(argv)
            for wait in BUSY_WAITS:
                if not done.code or classify(argv, done) is not Kind.BUSY:
                    break
                self.say(f"{self.job.name} cannot be deleted yet, waiting {wait:.0f} s")
                self.sleep(wait)
                done = self.run(argv)
            if done.code and classify(argv, done) is not Kind.MISSING:
                self._checked(argv, done)

    def ssh(self, script: str, worker: str = "all", stream: bool = False) -> str:
        """The output of a script on one worker or on all; retries a lost connection."""
        argv = commands.ssh(self.job, script, worker)
        done = self.run(argv, stream=stream)
        for wait in CONNECTION_WAITS:
            if done.code != LOST_CONNECTION:
                break
            self.say(f"no connection to {self.job.name}, trying again in {wait:.0f} s")
            self.sleep(wait)
            done = self.run(argv, stream=stream)
        return self._checked(argv, done).output

    def _checked(self, argv: Sequence[str], done: Done) -> Done:
        if done.code:
            errors = done.errors or f"it ended with status {done.code}"
            raise self.error(classify(argv, done), errors, argv)
        return done

    def error(self, kind: Kind, errors: str, argv: Sequence[str] = ()) -> CloudError:
        """The error as a sentence for the user."""
        sentence = ADVICE[kind].format(
            name=self.job.name,
            project=self.job.project,
            zone=self.job.zone,
            accelerator=self.job.slice.accelerator,
            detail=detail_of(errors),
            attempts=1 + len(CONNECTION_WAITS),
            command=shlex.join(argv),
        )
        return CloudError(kind, sentence)
