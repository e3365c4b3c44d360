"""What gcloud's errors mean: a short list of those that waiting does not mend.

Everything else is tried again, with growing waits.
"""

import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from hyla_lm.tpu.programs import TIMED_OUT

LOST_CONNECTION = 255
LONGEST_DETAIL = 300
_OWN_ERROR = re.compile(r"ERROR: \(?gcloud")
_ATTEMPT = re.compile(r"SSH: Attempting to connect to worker (\d+)")
_CHATTER = ("#####", "SSH: ", "Using ssh batch size", "Retrying: ")


class Kind(Enum):
    """What is done about an error."""

    FINAL = auto()  # a person must act
    AGAIN = auto()  # waiting mends it
    UNREACHED = auto()  # a host or Google gave no answer
    UNKNOWN = auto()  # words that are not in the table: tried again, but not for ever
    ON_HOST = auto()  # a command failed on a host
    MISSING = auto()
    EXISTS = auto()
    QUOTA = auto()  # final, but for a slice that was there before: quota comes back late


class Answer(NamedTuple):
    """Words that identify an answer, what is done about it, and the sentence for a person."""

    words: str
    kind: Kind
    sentence: str


_SIGNED_OUT = "gcloud is not signed in: run gcloud auth login."
_LATER = "Google could not do it now ({detail}): try again in some minutes."
NO_ANSWER = Answer("", Kind.UNREACHED, "There was no answer ({detail}): look at the network.")
NO_CONNECTION = Answer(
    r"return code \[255\]|using IAP tunneling",
    Kind.UNREACHED,
    "No SSH connection to {name} after {attempts} attempts: check that the network lets port 22 "
    "in, or give --tunnel-through-iap, and that ssh-add ~/.ssh/google_compute_engine has been run.",
)
ON_HOST = Answer(
    "",
    Kind.ON_HOST,
    "A command failed on a host of {name} ({detail}): mend that and give the same command again.",
)
REFERENCE = Answer(
    "",
    Kind.FINAL,
    "The request names something that does not exist ({detail}): change --network, --subnetwork, "
    "--service-account or --runtime-version.",
)
EXPIRED = Answer(
    "",
    Kind.FINAL,
    "The request of {name} was not served in {valid_for} ({detail}): ask for longer with "
    "--valid-for, or change --zone.",
)
UNREADABLE = Answer("", Kind.AGAIN, "gcloud's answer cannot be read ({detail}): update it.")
TAKEN = Answer(
    r"ALREADY_EXISTS|already exists",
    Kind.EXISTS,
    "The name {name} is taken in {zone}: choose another --name, or `delete` it.",
)
NOT_THERE = Answer(
    r"NOT_FOUND|was not found", Kind.MISSING, "{name} does not exist in {zone}: `create` makes it."
)
# The first row whose words occur counts.
ANSWERS = (
    NO_CONNECTION,
    Answer(
        r"per minute|RATE_LIMIT_EXCEEDED|rateLimitExceeded|\b429\b|Too Many Requests"
        r"|metric '\w+ requests'",
        Kind.AGAIN,
        _LATER,
    ),
    Answer(r"invalid_grant|[Rr]eauthentication|active account selected", Kind.FINAL, _SIGNED_OUT),
    Answer(
        r"Max retries exceeded|Unable to find the server|Connection (reset|refused|aborted)"
        r"|[Nn]ame resolution|Network is unreachable|RemoteDisconnected|gcloud crashed",
        Kind.AGAIN,
        "gcloud does not reach Google ({detail}): look at this machine's network.",
    ),
    Answer(r"gcloud auth login", Kind.FINAL, _SIGNED_OUT),
    Answer(
        r"ssh-add",
        Kind.FINAL,
        "The SSH agent has no key: run ssh-add ~/.ssh/google_compute_engine.",
    ),
    Answer(r"\[--worker\]", Kind.FINAL, "{name} has no such host ({detail}): change --worker."),
    Answer(
        r"BILLING_DISABLED|[Bb]illing (account )?.*(disabled|not enabled|enabled|closed)",
        Kind.FINAL,
        "Billing is off in {project} ({detail}): run gcloud billing projects link {project} "
        "--billing-account=ACCOUNT.",
    ),
    Answer(
        r"SERVICE_DISABLED|has not been used in project|it is disabled",
        Kind.FINAL,
        "The TPU API is off in {project}: run gcloud services enable tpu.googleapis.com "
        "--project={project}.",
    ),
    Answer(
        r"CONSUMER_INVALID|USER_PROJECT_DENIED|[Pp]roject \[?'?[\w:./-]*'?\]? ?(was )?"
        r"(not found|has been deleted|does not exist)|resource project|project property",
        Kind.FINAL,
        "There is no project {project}, or not for your account ({detail}): change --project; "
        "gcloud projects list has yours.",
    ),
    Answer(
        r"[Ll]ocation .*(not found|invalid|unsupported)|Unexpected location"
        r"|denied on 'locations/|[Zz]one .*(not found|does not exist)",
        Kind.FINAL,
        "{zone} is no zone for TPUs of {project} ({detail}): change --zone.",
    ),
    Answer(
        r"[Aa]ccelerator ?[Tt]ype .*(not (found|available|supported)|unsupported|invalid)",
        Kind.FINAL,
        "{zone} does not offer {accelerator} ({detail}): change --zone or the type.",
    ),
    TAKEN,
    Answer(
        r"no more capacity|[Ii]nsufficient .*capacity|RESOURCE_POOL_EXHAUSTED|stockout",
        Kind.AGAIN,
        "{zone} has no free {accelerator} ({detail}): try later, another --zone or "
        "--accelerator-type, or `supervise`, which tries until there is one.",
    ),
    Answer(
        r"[Rr]etriable|[Tt]ry again|[Pp]lease retry|operation in progress|maintenance event"
        r"|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|HTTPError 50[0234]|has terminal state"
        r"|FAILED_PRECONDITION|while in state|cannot be currently connected to",
        Kind.AGAIN,
        _LATER,
    ),
    Answer(
        r"INVALID_ARGUMENT|invalid choice|unrecognized arguments|Invalid value for",
        Kind.FINAL,
        "gcloud refuses the request ({detail}): change that option, or update gcloud.",
    ),
    NOT_THERE,
    Answer(
        r"[Qq]uota|RESOURCE_EXHAUSTED",
        Kind.QUOTA,
        "{project} has no quota for this {accelerator} in {zone} ({detail}): ask for more under "
        "IAM & Admin > Quotas, or change --spot, --zone or --accelerator-type.",
    ),
    Answer(
        r"PERMISSION_DENIED|[Pp]ermission|\b403\b|Forbidden",
        Kind.FINAL,
        "You may not do this in {project} ({detail}): ask its owner for roles/tpu.admin and "
        "roles/iam.serviceAccountUser, or change --project.",
    ),
    Answer("", Kind.UNKNOWN, "gcloud failed ({detail}): the command was {command}."),
)


def answer_of(argv: Sequence[str], code: int, errors: str) -> Answer:
    """What the failure of a gcloud command means."""
    if code in (LOST_CONNECTION, TIMED_OUT):
        return NO_CONNECTION if code == LOST_CONNECTION else NO_ANSWER
    own = _OWN_ERROR.search(errors)
    if "ssh" in argv and own is None:
        return ON_HOST
    answer = answer_in(errors[own.start() :] if own else errors)
    return REFERENCE if answer.kind is Kind.MISSING and "create" in argv else answer


def answer_in(errors: str) -> Answer:
    """The first row of the table whose words occur in a text."""
    return next(answer for answer in ANSWERS if re.search(answer.words, errors))


def detail_of(errors: str) -> str:
    """The most informative line of gcloud's stderr, without prefix and braces."""
    message = re.search(r'"message": "((?:[^"\\]|\\.)*)"', errors)
    every = [line.strip("# ") for line in errors.splitlines() if line.strip("# ")]
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(_CHATTER)]
    named = [line for line in lines if line.startswith("ERROR:")]
    line = (
        message[1].replace('\\"', '"') if message else (named or lines or every or ["nothing"])[-1]
    )
    return re.sub(r"^ERROR: (\([\w.-]+\) )?", "", line).strip().rstrip(".")[:LONGEST_DETAIL]


def silent_hosts(errors: str) -> frozenset[int]:
    """The hosts that gcloud tried to connect to again and again."""
    tried = Counter(int(number) for number in _ATTEMPT.findall(errors))
    return frozenset(number for number, times in tried.items() if times > 1)
