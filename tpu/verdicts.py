"""What gcloud answers, what that means, and what is done about it."""

import re
from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto

# 256 is no status of a program: `timeout` on a host ends with 124.
LOST_CONNECTION, TIMED_OUT = 255, 256
OWN_ERROR = re.compile(r"ERROR: \(?gcloud")
LONGEST_DETAIL = 300
ATTEMPT = re.compile(r"SSH: Attempting to connect to worker (\d+)")
CHATTER = ("#####", "SSH: ", "Using ssh batch size", "Retrying: ")


class Kind(Enum):
    """Kinds of gcloud errors."""

    TIMEOUT = auto()
    CONNECTION = auto()
    RATE = auto()
    SIGNED_OUT = auto()
    NETWORK = auto()
    LOGIN = auto()
    SSH_KEY = auto()
    WORKER = auto()
    BILLING = auto()
    API_OFF = auto()
    PROJECT = auto()
    ZONE = auto()
    OFFER = auto()
    EXISTS = auto()
    NODE_LOST = auto()
    CAPACITY = auto()
    RETRIABLE = auto()
    BUSY = auto()
    MISSING = auto()
    QUOTA = auto()
    PERMISSION = auto()
    INVALID = auto()
    OTHER = auto()
    REFERENCE = auto()
    REMOTE = auto()
    EXPIRED = auto()
    UNREADABLE = auto()


# The words that identify a kind; the first match counts.
WORDS = {
    Kind.CONNECTION: r"return code \[255\]|using IAP tunneling",
    Kind.RATE: (
        r"per minute|RATE_LIMIT_EXCEEDED|rateLimitExceeded|\b429\b|Too Many Requests"
        r"|metric '\w+ requests'"
    ),
    Kind.SIGNED_OUT: r"invalid_grant|[Rr]eauthentication|active account selected",
    Kind.NETWORK: (
        r"Max retries exceeded|Unable to find the server|Connection (reset|refused|aborted)"
        r"|[Nn]ame resolution|Network is unreachable|RemoteDisconnected|gcloud crashed"
    ),
    Kind.LOGIN: r"gcloud auth login",
    Kind.SSH_KEY: r"ssh-add",
    Kind.WORKER: r"\[--worker\]",
    Kind.BILLING: r"BILLING_DISABLED|[Bb]illing (account )?.*(disabled|not enabled|enabled|closed)",
    Kind.API_OFF: r"SERVICE_DISABLED|has not been used in project|it is disabled",
    Kind.PROJECT: (
        r"CONSUMER_INVALID|USER_PROJECT_DENIED|[Pp]roject \[?'?[\w:./-]*'?\]? ?(was )?"
        r"(not found|has been deleted|does not exist)|resource project|project property"
    ),
    Kind.ZONE: (
        r"[Ll]ocation .*(not found|invalid|unsupported)|Unexpected location"
        r"|denied on 'locations/|[Zz]one .*(not found|does not exist)"
    ),
    Kind.OFFER: r"[Aa]ccelerator ?[Tt]ype .*(not (found|available|supported)|unsupported|invalid)",
    Kind.EXISTS: r"ALREADY_EXISTS|already exists",
    Kind.NODE_LOST: r"has terminal state",
    Kind.CAPACITY: r"no more capacity|[Ii]nsufficient .*capacity|RESOURCE_POOL_EXHAUSTED|stockout",
    Kind.RETRIABLE: (
        r"[Rr]etriable|[Tt]ry again|[Pp]lease retry|operation in progress|maintenance event"
        r"|UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|HTTPError 50[0234]"
    ),
    Kind.BUSY: r"FAILED_PRECONDITION|while in state|cannot be currently connected to",
    Kind.INVALID: r"INVALID_ARGUMENT|invalid choice|unrecognized arguments|Invalid value for",
    Kind.MISSING: r"NOT_FOUND|was not found",
    Kind.QUOTA: r"[Qq]uota|RESOURCE_EXHAUSTED",
    Kind.PERMISSION: r"PERMISSION_DENIED|[Pp]ermission|\b403\b|Forbidden",
    Kind.OTHER: r"",
}
# Waiting mends these.
PASSING = frozenset(
    {
        *(Kind.TIMEOUT, Kind.CONNECTION, Kind.RATE, Kind.NETWORK, Kind.NODE_LOST, Kind.CAPACITY),
        *(Kind.RETRIABLE, Kind.BUSY, Kind.OTHER, Kind.UNREADABLE),
    }
)
# One answer of the API is not believed: the same request is sent again soon.
ASK_AGAIN = frozenset({Kind.TIMEOUT, Kind.RATE, Kind.NETWORK, Kind.RETRIABLE, Kind.UNREADABLE})

ADVICE = {
    Kind.TIMEOUT: "gcloud gave no answer ({detail}): look at the network and try again.",
    Kind.RATE: "The API takes no more requests this minute ({detail}): try again in some minutes.",
    Kind.NETWORK: "gcloud does not reach Google ({detail}): look at this machine's network.",
    Kind.SIGNED_OUT: "gcloud is not signed in: run gcloud auth login.",
    Kind.LOGIN: "gcloud is not signed in: run gcloud auth login.",
    Kind.SSH_KEY: "The SSH agent has no key: run ssh-add ~/.ssh/google_compute_engine.",
    Kind.WORKER: "{name} has no such host ({detail}): change --worker.",
    Kind.BILLING: (
        "Billing is off in {project} ({detail}): run gcloud billing projects link {project} "
        "--billing-account=ACCOUNT."
    ),
    Kind.API_OFF: (
        "The TPU API is off in {project}: "
        "run gcloud services enable tpu.googleapis.com --project={project}."
    ),
    Kind.PROJECT: (
        "There is no project {project}, or not for your account ({detail}): change --project; "
        "gcloud projects list has yours."
    ),
    Kind.ZONE: "{zone} is no zone for TPUs of {project} ({detail}): change --zone.",
    Kind.OFFER: "{zone} does not offer {accelerator} ({detail}): change --zone or the type.",
    Kind.EXISTS: "The name {name} is taken in {zone}: choose another --name, or `delete` it.",
    Kind.NODE_LOST: "The machines of {name} were taken away: `resume` makes them again.",
    Kind.CAPACITY: (
        "{zone} has no free {accelerator} ({detail}): try later, another --zone or "
        "--accelerator-type, or `supervise`, which goes on trying."
    ),
    Kind.RETRIABLE: "Google could not do it now ({detail}): try again in some minutes.",
    Kind.BUSY: "{name} is between two states ({detail}): try again in some minutes.",
    Kind.MISSING: "{name} does not exist in {zone}: `create` makes it.",
    Kind.REFERENCE: (
        "The request names something that does not exist ({detail}): change --network, "
        "--subnetwork, --service-account or --runtime-version."
    ),
    Kind.QUOTA: (
        "{project} has no quota for this {accelerator} in {zone} ({detail}): ask for more under "
        "IAM & Admin > Quotas, or change --spot, --zone or --accelerator-type."
    ),
    Kind.PERMISSION: (
        "You may not do this in {project} ({detail}): ask its owner for roles/tpu.admin and "
        "roles/iam.serviceAccountUser, or change --project."
    ),
    Kind.INVALID: "gcloud refuses the request ({detail}): change that option.",
    Kind.CONNECTION: (
        "No SSH connection to {name} after {attempts} attempts: check that the network "
        "lets port 22 in, or give --tunnel-through-iap, and that "
        "ssh-add ~/.ssh/google_compute_engine has been run."
    ),
    Kind.REMOTE: (
        "A command failed on a host of {name} ({detail}): mend that and give the same command "
        "again."
    ),
    Kind.EXPIRED: (
        "The request of {name} was not served in {valid_for} ({detail}): ask for longer with "
        "--valid-for, or change --zone."
    ),
    Kind.UNREADABLE: "gcloud's answer cannot be read ({detail}): update it.",
    Kind.OTHER: "gcloud failed ({detail}): the command was {command}.",
}


def classify(argv: Sequence[str], code: int, errors: str) -> Kind:
    """The kind of error that a gcloud command ended with."""
    if code in (LOST_CONNECTION, TIMED_OUT):
        return Kind.CONNECTION if code == LOST_CONNECTION else Kind.TIMEOUT
    own = OWN_ERROR.search(errors)
    if "ssh" in argv and own is None:
        return Kind.REMOTE
    kind = kind_of(errors[own.start() :] if own else errors)
    return Kind.REFERENCE if kind is Kind.MISSING and "create" in argv else kind


def kind_of(errors: str) -> Kind:
    """The first kind whose words occur in the text."""
    return next(kind for kind, words in WORDS.items() if re.search(words, errors))


def detail_of(errors: str) -> str:
    """The most informative line of gcloud's stderr, without prefix and braces."""
    message = re.search(r'"message": "((?:[^"\\]|\\.)*)"', errors)
    said = [line.strip("# ") for line in errors.splitlines() if line.strip("# ")] or ["no message"]
    lines = [line for line in errors.splitlines() if line.strip() and not line.startswith(CHATTER)]
    named = [line for line in lines if line.startswith("ERROR:")]
    line = message[1].replace('\\"', '"') if message else (named or lines or said)[-1]
    return re.sub(r"^ERROR: (\([\w.-]+\) )?", "", line).strip().rstrip(".")[:LONGEST_DETAIL]


def hosts_away(errors: str) -> frozenset[int]:
    """The hosts that gcloud tried to connect to again and again."""
    tried = Counter(int(number) for number in ATTEMPT.findall(errors))
    return frozenset(number for number, times in tried.items() if times > 1)
