"""The operations behind the launcher's commands."""

import json
from typing import Any

from hyla_lm.config import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.cloud import POLL_SECONDS, Cloud, CloudError, Found, Kind, State, kind_of

BILLED = "{name} still exists, and is billed while its machines do: `delete` ends that."
NOTHING_LEFT = "What was made of {name} has been deleted, so nothing is billed."


def create(cloud: Cloud, wait_minutes: float, keep: bool = False) -> None:
    """Creates the slice, or its lost parts; deletes what it created on an error.

    Raises UserError with the refusal, or if the slice is not ready in time.
    """
    found = cloud.find()
    if found.state is State.ACTIVE:
        cloud.say(f"{cloud.job.name} is {found.resource} already")
        return
    if found.state is State.ORPHAN:
        raise cloud.error(Kind.EXISTS, "")
    if found.state is State.LOST:
        cloud.say(f"{cloud.job.name} is {_words(found)}: deleting it to make it again")
        cloud.delete()
    made = found.state is not State.WAITING
    try:
        if made:
            cloud.create()
        await_active(cloud, wait_minutes)
        cloud.ssh("true")
    except BaseException as error:
        taken = isinstance(error, CloudError) and error.kind is Kind.EXISTS
        if made and not keep and not taken:
            _delete_after(cloud)
        elif not taken:
            cloud.say(BILLED.format(name=cloud.job.name))
        raise
    cloud.say(f"{cloud.job.name} is ready")


def await_active(cloud: Cloud, wait_minutes: float) -> None:
    """Waits until the slice can be used; raises UserError if it fails or takes too long."""
    waited, last = 0.0, ""
    while (found := cloud.find()).state is not State.ACTIVE:
        if found.state is not State.WAITING:
            raise _failure(cloud, found)
        if waited >= 60 * wait_minutes:
            raise cloud.error(
                Kind.CAPACITY, f"still {found.resource} after {wait_minutes:.0f} minutes"
            )
        if _words(found) != last:
            last = _words(found)
            cloud.say(f"{cloud.job.name} is {last}")
        cloud.sleep(POLL_SECONDS)
        waited += POLL_SECONDS


def run(cloud: Cloud) -> None:
    """Installs the package on every host and starts the trainer, unless it is running."""
    cloud.job.check_run()
    require_active(cloud)
    start(cloud)


def start(cloud: Cloud) -> None:
    """`run` on a slice that is known to be active."""
    cloud.ssh(commands.install(cloud.job))
    answers = parse(cloud.ssh(commands.start(cloud.job)))
    started = sum(answer.get("started", False) for answer in answers)
    cloud.say(f"trainer started on {started} hosts, running before on {len(answers) - started}")


def resume(cloud: Cloud, wait_minutes: float, keep: bool = False) -> None:
    """Creates the slice again if it is gone, then runs the same command."""
    cloud.job.check_run()
    create(cloud, wait_minutes, keep)
    try:
        start(cloud)
    except BaseException:
        cloud.say(BILLED.format(name=cloud.job.name))
        raise


def stop(cloud: Cloud) -> None:
    """Ends the trainer on every host; the slice stays."""
    require_active(cloud)
    cloud.ssh(commands.stop(cloud.job))
    cloud.say(BILLED.format(name=cloud.job.name))


def delete(cloud: Cloud) -> None:
    """Deletes node and request."""
    cloud.delete()
    cloud.say(f"{cloud.job.name} is gone")


def status(cloud: Cloud) -> list[str]:
    """Lines about the slice and about the trainer on each host."""
    found = cloud.find()
    lines = [f"{cloud.job.name}  {found.state.value} ({_words(found)})"]
    if found.error:
        lines.append(f"  {found.error}")
    if found.state is not State.ACTIVE:
        return lines
    try:
        answers = parse(cloud.ssh(commands.trainer_status(cloud.job)))
    except CloudError as error:
        return [*lines, f"  {error}"]
    return lines + [f"  {_line(answer)}" for answer in answers]


def logs(cloud: Cloud, worker: str, lines: int, follow: bool) -> None:
    """Shows the trainer's log on one host, and follows it."""
    require_active(cloud)
    cloud.ssh(commands.tail(cloud.job, lines, follow), worker, stream=True)


def doctor(cloud: Cloud) -> None:
    """Installs the package and checks all hosts at once, since JAX needs all chips of a slice."""
    cloud.job.code.check()
    require_active(cloud)
    cloud.ssh(commands.install(cloud.job))
    cloud.ssh(commands.doctor(cloud.job), stream=True)


def require_active(cloud: Cloud) -> None:
    """Raises UserError unless the slice is active."""
    found = cloud.find()
    if found.state in (State.ABSENT, State.ORPHAN):
        raise cloud.error(Kind.EXISTS if found.state is State.ORPHAN else Kind.MISSING, "")
    if found.state is not State.ACTIVE:
        raise UserError(
            f"{cloud.job.name} is {_words(found)}: `resume` makes it usable and trains on it."
        )


def parse(output: str) -> list[dict[str, Any]]:
    """The lines of JSON in the hosts' output, in the order of the hosts' names."""
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda line: line.get("host", ""))


def _delete_after(cloud: Cloud) -> None:
    """Deletes the slice after an error, and keeps that error."""
    try:
        cloud.delete()
    except UserError as error:
        cloud.say(f"{error} {BILLED.format(name=cloud.job.name)}")
        return
    cloud.say(NOTHING_LEFT.format(name=cloud.job.name))


def _failure(cloud: Cloud, found: Found) -> CloudError:
    if not found.error:
        sentence = f"{cloud.job.name} became {_words(found)}: give the same command again."
        return CloudError(Kind.OTHER, sentence)
    return cloud.error(kind_of(found.error), found.error)


def _words(found: Found) -> str:
    return f"{found.resource}, node {found.node}" if found.resource == "ACTIVE" else found.resource


def _line(answer: dict[str, Any]) -> str:
    state = answer.get("state", "never started")
    code = f" with status {answer['code']}" if "code" in answer else ""
    step = f", newest checkpoint {answer['step']}" if answer.get("step") is not None else ""
    return f"{answer.get('host', 'host')}  {state}{code}{step}"
