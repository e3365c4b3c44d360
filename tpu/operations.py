"""The operations behind the launcher's commands."""

import json
from contextlib import suppress
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.answers import EXPIRED, NOT_THERE, TAKEN, Kind, answer_in
from hyla_lm.tpu.cloud import POLL_SECONDS, SSH_SECONDS, Cloud, CloudError, Found, State

BILLED = "{name} still exists, and is billed while its machines do: `delete` ends that."
QUEUED = (
    "{name} is {words} and keeps its place in the queue: nothing is billed until its turn comes, "
    "then it is; `create` waits on, `delete` gives the place up."
)
LOST = "The machines of {name} are gone ({words}), so nothing is billed: `delete` clears the rest."
NOTHING_LEFT = "Nothing of {name} exists, so nothing is billed."
UNKNOWN = "Whether {name} exists and is billed could not be seen: `status` looks again."
# pip and git fail now and then.
INSTALL_WAITS = (30.0, 120.0)


def bill(cloud: Cloud) -> str:
    """What exists of the slice, and whether it costs, as the cloud says now."""
    try:
        found = cloud.find()
    except UserError as error:
        return f"{UNKNOWN.format(name=cloud.job.name)} {error}"
    texts = {State.ABSENT: NOTHING_LEFT, State.LOST: LOST, State.WAITING: QUEUED}
    text = BILLED if found.resource == "ACTIVE" and found.state is State.WAITING else None
    text = text or texts.get(found.state, BILLED)
    return text.format(name=cloud.job.name, words=words(found))


def create(cloud: Cloud, wait_minutes: float, keep: bool = False) -> None:
    """Creates the slice, or its lost parts; deletes what it created on an error.

    A request that still waits when the time is over keeps its place in the queue. Raises UserError
    with the refusal, or if the slice is not ready in time.
    """
    found = cloud.find()
    if found.state is State.ACTIVE:
        cloud.say(f"{cloud.job.name} is {found.resource} already")
        return
    if found.state is State.ORPHAN:
        raise cloud.error(TAKEN, "")
    if found.state is State.LOST:
        cloud.say(f"{cloud.job.name} is {words(found)}: deleting it to make it again")
        cloud.delete()
    made = found.state is not State.WAITING
    try:
        if made:
            cloud.create()
        await_active(cloud, wait_minutes)
        cloud.ssh("true")
    except BaseException as error:
        _after_error(cloud, error, made and not keep)
        raise
    cloud.say(f"{cloud.job.name} is ready")


def _after_error(cloud: Cloud, error: BaseException, deletes: bool) -> None:
    """Deletes what was made, unless it waits in the queue; says what is left and what it costs."""
    if isinstance(error, CloudError) and error.kind is Kind.EXISTS:
        return
    if deletes and not isinstance(error, StillWaiting):
        try:
            cloud.delete()
        except UserError as failure:
            cloud.say(str(failure))
    cloud.say(bill(cloud))


class StillWaiting(UserError):
    """The request was not served in the time that the user gave."""


def await_active(cloud: Cloud, wait_minutes: float) -> None:
    """Waits until the slice can be used; raises UserError if it fails or takes too long."""
    started, last = cloud.clock(), ""
    while (found := cloud.find()).state is not State.ACTIVE:
        if found.state is not State.WAITING:
            raise failure(cloud, found)
        if cloud.clock() - started >= 60 * wait_minutes:
            raise StillWaiting(
                f"{cloud.job.name} is still {words(found)} after {wait_minutes:.0f} minutes."
            )
        if words(found) != last:
            last = words(found)
            cloud.say(f"{cloud.job.name} is {last}")
        cloud.sleep(POLL_SECONDS)


def run(cloud: Cloud) -> None:
    """Installs the package on every host and starts the trainer, unless it is running."""
    cloud.job.check_run()
    require_active(cloud)
    start(cloud)


def start(cloud: Cloud) -> None:
    """`run` on a slice that is known to be active."""
    install(cloud)
    answers = parse(cloud.ssh(commands.start(cloud.job)))
    started = sum(answer.get("started", False) for answer in answers)
    cloud.say(f"trainer started on {started} hosts, running before on {len(answers) - started}")


def install(cloud: Cloud) -> None:
    """Installs the package on every host where it is not; a host may fail twice."""
    script = commands.install(cloud.job)
    for wait in INSTALL_WAITS:
        try:
            cloud.ssh(script, limit=commands.INSTALL_SECONDS)
            return
        except CloudError as error:
            if error.kind is not Kind.ON_HOST:
                raise
            cloud.say(f"{error} Trying again in {wait:.0f} s.")
            cloud.sleep(wait)
    cloud.ssh(script, limit=commands.INSTALL_SECONDS)


def resume(cloud: Cloud, wait_minutes: float, keep: bool = False) -> None:
    """Creates the slice again if it is gone, then runs the same command."""
    cloud.job.check_run()
    create(cloud, wait_minutes, keep)
    try:
        start(cloud)
    except BaseException:
        cloud.say(bill(cloud))
        raise


def stop(cloud: Cloud) -> None:
    """Ends the trainer on every host; the slice stays."""
    require_active(cloud)
    cloud.ssh(commands.stop(cloud.job))
    cloud.say(bill(cloud))


def delete(cloud: Cloud) -> None:
    """Deletes nodes and request."""
    try:
        cloud.delete()
    except BaseException:
        cloud.say(bill(cloud))
        raise
    cloud.say(f"{cloud.job.name} is gone")


def status(cloud: Cloud) -> list[str]:
    """Lines about the slice and about the trainer on each host."""
    found = cloud.find()
    lines = [f"{cloud.job.name}  {found.state.value} ({words(found)})"]
    if found.error:
        lines.append(f"  {found.error}")
    if found.state is not State.ACTIVE:
        return lines
    try:
        output, away = cloud.ask_hosts(commands.trainer_status(cloud.job))
    except CloudError as error:
        return [*lines, f"  {error}"]
    lines += [f"  {_line(answer)}" for answer in parse(output)]
    return lines + [f"  host {number}  does not answer" for number in away]


def logs(cloud: Cloud, worker: str, lines: int, follow: bool) -> None:
    """Shows the trainer's log on one host, and follows it."""
    last = cloud.job.hosts - 1
    if not worker.isdecimal() or int(worker) > last:
        raise UserError(f"--worker={worker} is no host of {cloud.job.name}: give 0 to {last}.")
    require_active(cloud)
    script = commands.tail(cloud.job, lines, follow)
    cloud.ssh(script, worker, stream=True, limit=None if follow else SSH_SECONDS)


def doctor(cloud: Cloud) -> None:
    """Installs the package and checks all hosts at once, since JAX needs all chips of a slice."""
    cloud.job.code.check()
    require_active(cloud)
    install(cloud)
    cloud.ssh(commands.doctor(cloud.job), stream=True, limit=commands.DOCTOR_SECONDS)


def require_active(cloud: Cloud) -> None:
    """Raises UserError unless the slice is active."""
    found = cloud.find()
    if found.state in (State.ABSENT, State.ORPHAN):
        raise cloud.error(TAKEN if found.state is State.ORPHAN else NOT_THERE, "")
    if found.state is not State.ACTIVE:
        raise UserError(
            f"{cloud.job.name} is {words(found)}: `resume` makes it usable and trains on it."
        )


def parse(output: str) -> list[dict[str, Any]]:
    """The lines of JSON in the hosts' output, in the order of the hosts' names.

    What a login prints, and a line that was cut off, are left out.
    """
    answers = []
    for line in output.splitlines():
        with suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict) and isinstance(answer.get("state", ""), str):
                answers.append(answer)
    return sorted(answers, key=lambda answer: str(answer.get("host", "")))


def failure(cloud: Cloud, found: Found) -> CloudError:
    """Why a request was not served, as a sentence."""
    answer = answer_in(found.error)
    is_passing = answer.kind in (Kind.UNKNOWN, Kind.AGAIN)
    if cloud.job.valid_for and found.resource == "FAILED" and is_passing:
        return cloud.error(EXPIRED, found.error or found.resource)
    if not found.error:
        sentence = f"{cloud.job.name} became {words(found)}: give the same command again."
        return CloudError(Kind.AGAIN, sentence)
    return cloud.error(answer, found.error)


def words(found: Found) -> str:
    """The state of a slice in gcloud's words."""
    return f"{found.resource}, node {found.node}" if found.resource == "ACTIVE" else found.resource


def _line(answer: dict[str, Any]) -> str:
    state = answer.get("state", "never started")
    code = f" with status {answer['code']}" if "code" in answer else ""
    step = f", newest checkpoint {answer['step']}" if answer.get("step") is not None else ""
    return f"{answer.get('host', 'host')}  {state}{code}{step}"
