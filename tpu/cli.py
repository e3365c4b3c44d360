"""Trains on Cloud TPU v5e: hyla-lm tpu COMMAND --help; @FILE reads options from a file."""

import argparse
import dataclasses
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from hyla_lm import ending
from hyla_lm.cli.parser import Parser, parse
from hyla_lm.errors import UserError
from hyla_lm.tpu import commands
from hyla_lm.tpu.cloud import SSH_SECONDS, Cloud, State, leaving
from hyla_lm.tpu.gcloud import run_for_real
from hyla_lm.tpu.job import SLICES, Job, hide
from hyla_lm.tpu.supervise import read_status, supervise

LOG_LINES = 100
HELPS = {
    "status": "say what the slice and the trainer do",
    "logs": "show the trainer's log and follow it",
    "supervise": "ask for a slice, install and train whenever needed, until training is done",
    "delete": "delete the slice",
}


def main(
    arguments: Sequence[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them.

    Ctrl-C and SIGTERM interrupt it, so that it can print the bill.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    return ending.run("hyla-lm tpu", lambda: _launch(argv, sleep, clock))


def _launch(argv: list[str], sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
    options, bindings = parse(parser(), expand(argv))
    job = job_of(options, bindings)
    cloud = Cloud(job, run_for_real, sleep, clock=clock)
    if options.command == "supervise":
        job.check_run()
        if options.dry_run:
            print("\n".join(shlex.join(command) for command in _commands(job.without_secrets())))
        else:
            supervise(cloud, options.idle_minutes, options.delete_after)
    elif options.command == "delete":
        leaving(cloud, lambda: None, deletes=True)
    elif options.command == "status":
        print("\n".join(status(cloud)))
    else:
        _logs(cloud, options.worker, options.follow)


def job_of(options: argparse.Namespace, bindings: Sequence[str]) -> Job:
    """The job that options describe; raises UserError for invalid options."""
    given = {**vars(options), "bindings": bindings}
    return Job(**{field.name: given[field.name] for field in dataclasses.fields(Job)})


def _commands(job: Job) -> list[list[str]]:
    """What `supervise` runs where all goes well, but for its questions."""
    scripts = (commands.install(job), commands.start(job))
    return [commands.create(job), *(one for script in scripts for one in commands.ssh(job, script))]


def status(cloud: Cloud) -> list[str]:
    """Lines about the slice and about the trainer on each host."""
    found = cloud.insist(cloud.find)
    lines = [f"{cloud.job.name}  {found.words}{found.failure and f': {found.failure}'}"]
    if found.state is not State.ACTIVE:
        return lines
    output, away = cloud.insist(lambda: cloud.ask_hosts(commands.trainer_status(cloud.job)))
    lines += [f"  {_line(answer)}" for answer in read_status(output)]
    return lines + [f"  host {number}  does not answer" for number in away]


def _line(answer: dict[str, Any]) -> str:
    state = answer.get("state", "never started")
    code = f" with status {answer['code']}" if "code" in answer else ""
    step = f", newest checkpoint {answer['step']}" if answer.get("step") is not None else ""
    return f"{answer.get('host', 'host')}  {state}{code}{step}"


def _logs(cloud: Cloud, worker: str, follow: bool) -> None:
    """Shows the trainer's log on one host, and follows it."""
    last = cloud.job.hosts - 1
    if not worker.isdecimal() or int(worker) > last:
        raise UserError(f"--worker={worker} is no host of {cloud.job.name}: give 0 to {last}.")
    found = cloud.insist(cloud.find)
    if found.state is not State.ACTIVE:
        raise UserError(f"{cloud.job.name} is {found.words}: `supervise` makes it usable.")
    script = commands.tail(cloud.job, LOG_LINES, follow)
    cloud.ssh(script, worker, stream=True, limit=None if follow else SSH_SECONDS)


def expand(argv: Sequence[str]) -> list[str]:
    """Replaces @FILE by the lines of that file, without those that are empty or begin with #."""
    expanded: list[str] = []
    for argument in argv:
        if not argument.startswith("@"):
            expanded.append(argument)
            continue
        try:
            lines = [line.strip() for line in Path(argument[1:]).read_text().splitlines()]
        except OSError as error:
            raise UserError(f"{argument} cannot be read: {error.strerror}.") from None
        expanded += [line for line in lines if line and not line.startswith("#")]
    return expanded


class _Parser(Parser):
    """A parser that shows no secrets of a command line that it refuses."""

    def error(self, message: str) -> NoReturn:
        super().error(hide(message))


def parser() -> argparse.ArgumentParser:
    """The parser of the launcher's commands."""
    parser = _Parser(prog="hyla-lm tpu", description=__doc__)
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in HELPS.items():
        example = f"Example: hyla-lm tpu {name} @job.args"
        command = choices.add_parser(name, help=text, description=text, epilog=example)
        _add_job(command)
        if name == "supervise":
            command.add_argument("--dry-run", action="store_true", help="print commands, run none")
            command.add_argument("--delete-after", action="store_true", help="delete it at the end")
            command.add_argument(
                "--idle-minutes", type=float, default=120, help="billed minutes without training"
            )
        if name == "logs":
            command.add_argument("--worker", default="0", help="number of the host")
            command.add_argument("--no-follow", dest="follow", action="store_false")
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Adds options of a job, spelled as gcloud and hyla-lm spell them."""
    cloud = parser.add_argument_group("the slice")
    cloud.add_argument("--name", required=True, help="name of the request and of its node")
    cloud.add_argument("--project", required=True, help="project of Google Cloud")
    cloud.add_argument("--zone", required=True, help="zone with v5e, such as us-west4-a")
    cloud.add_argument("--accelerator-type", default="v5litepod-16", choices=SLICES, help="chips")
    cloud.add_argument("--runtime-version", default="v2-alpha-tpuv5-lite", help="hosts' image")
    capacity = cloud.add_mutually_exclusive_group()
    capacity.add_argument("--spot", action="store_true", help="cheaper, may be taken away")
    capacity.add_argument("--reserved", action="store_true", help="from the project's reservation")
    cloud.add_argument("--network", default="", help="network of the hosts")
    cloud.add_argument("--subnetwork", default="", help="subnetwork of the hosts")
    cloud.add_argument("--service-account", default="", help="account of the hosts")
    cloud.add_argument(
        "--internal-ips", action="store_true", help="no external addresses: Cloud NAT, SSH by IAP"
    )
    cloud.add_argument("--slices", type=int, default=1, help="slices of this type")
    code = parser.add_argument_group("the package")
    code.add_argument("--repository", default="", help="address that git reads")
    code.add_argument("--revision", default="", help="whole commit, 40 digits")
    training = parser.add_argument_group("the training; --gin.Class.field=value sets a binding")
    training.add_argument("--gin_file", action="append", default=[], help="may be repeated")
    training.add_argument("--workdir", default="", help="folder of the run that all hosts see")
    training.add_argument("--env", action="append", default=[], help="NAME=VALUE on the hosts")
