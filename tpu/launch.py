"""Trains on Cloud TPU v5e: hyla-lm tpu COMMAND --help; @FILE reads options from a file."""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hyla_lm import ending
from hyla_lm.cli.parser import Parser, parse
from hyla_lm.errors import UserError
from hyla_lm.tpu import operations
from hyla_lm.tpu.cloud import Cloud
from hyla_lm.tpu.job import Code, Job, Slice, Training
from hyla_lm.tpu.programs import DryRun, run_for_real
from hyla_lm.tpu.supervise import supervise

FROM_NOTHING = ("create", "resume", "supervise")


def main(
    arguments: Sequence[str] | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them.

    Ctrl-C and SIGTERM interrupt it, so that it can delete what is half made.
    """
    argv = list(sys.argv[1:] if arguments is None else arguments)
    with _interruptible():
        return ending.run("hyla-lm tpu", lambda: _launch(argv, sleep, clock), ending.DEBUG in argv)


def _launch(argv: list[str], sleep: Callable[[float], None], clock: Callable[[], float]) -> None:
    options, bindings = _parse(argv)
    job = job_of(options, bindings)
    cloud = Cloud(job, run_for_real, sleep, clock=clock)
    if options.dry_run:
        dry_run = DryRun(exists=options.command not in FROM_NOTHING)
        cloud = Cloud(job, dry_run, sleep=_nothing, say=_nothing)
    _run(cloud, options)


def read_job(argv: list[str]) -> Job:
    """The job of a command line of the launcher; raises UserError for invalid options."""
    return job_of(*_parse(argv))


def job_of(options: argparse.Namespace, bindings: Sequence[str]) -> Job:
    """The job that options describe; raises UserError for invalid options."""
    capacities = {
        **{"spot": options.spot, "reserved": options.reserved},
        "best-effort": options.best_effort,
    }
    return Job(
        name=options.name,
        project=options.project,
        zone=options.zone,
        slice=Slice(options.accelerator_type),
        runtime=options.runtime_version,
        capacity=next((name for name, chosen in capacities.items() if chosen), "on-demand"),
        network=options.network,
        subnetwork=options.subnetwork,
        service_account=options.service_account,
        internal_ips=options.internal_ips,
        tunnel=options.tunnel_through_iap,
        slices=options.slices,
        valid_for=options.valid_for,
        training=Training(
            options.workdir, tuple(options.gin_file), tuple(bindings), tuple(options.env)
        ),
        code=Code(options.repository, options.revision, options.archive, options.python),
    )


def _run(cloud: Cloud, options: argparse.Namespace) -> None:
    command = options.command
    if command == "create":
        operations.create(cloud, options.wait_minutes, options.keep)
    elif command == "resume":
        operations.resume(cloud, options.wait_minutes, options.keep)
    elif command == "supervise":
        supervise(cloud, options.away_minutes, options.idle_minutes, options.delete_after)
    elif command == "logs":
        operations.logs(cloud, options.worker, options.lines, options.follow)
    elif command == "status":
        lines = operations.status(cloud)
        if not options.dry_run:
            print("\n".join(lines))
    else:
        plain = {"run": operations.run, "stop": operations.stop}
        more = {"delete": operations.delete, "doctor": operations.doctor}
        {**plain, **more}[command](cloud)


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The options and the gin bindings."""
    return parse(parser(), expand(argv))


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


def parser() -> argparse.ArgumentParser:
    """The parser of the launcher's commands."""
    parser = Parser(prog="hyla-lm tpu", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    helps = {
        "create": "ask for a slice and wait until its machines answer",
        "doctor": "install the package and look at every host",
        "run": "install the package and start the trainer on every host",
        "status": "say what the slice and the trainer do",
        "logs": "show the trainer's log and follow it",
        "stop": "end the trainer; the slice stays",
        "resume": "make the slice again if it is gone, and run",
        "supervise": "resume whenever needed until the trainer has finished",
        "delete": "delete the slice",
    }
    for name, text in helps.items():
        command = commands.add_parser(name, help=text, description=text)
        _add_job(command)
        if name in ("create", "resume"):
            command.add_argument("--wait-minutes", type=float, default=120, help="for capacity")
        if name in ("create", "resume"):
            command.add_argument(
                "--keep", action="store_true", help="what an error leaves half made"
            )
        if name == "supervise":
            command.add_argument(
                "--delete-after", action="store_true", help="delete the slice when it ends"
            )
            command.add_argument(
                "--away-minutes", type=float, default=20, help="until a slice is made again"
            )
            command.add_argument(
                "--idle-minutes",
                type=float,
                default=120,
                help="billed without training, to give up",
            )
        if name == "logs":
            command.add_argument("--worker", default="0", help="whose log")
            command.add_argument("--lines", type=int, default=100, help="to begin with")
            command.add_argument("--no-follow", dest="follow", action="store_false")
    return parser


def _add_job(parser: argparse.ArgumentParser) -> None:
    """Adds options of a job, spelled as gcloud and hyla-lm spell them."""
    parser.add_argument("--dry-run", action="store_true", help="print the commands, run none")
    parser.add_argument(ending.DEBUG, action="store_true", help="show every line of a failure")
    cloud = parser.add_argument_group("the slice")
    cloud.add_argument("--name", required=True, help="of the queued resource and of its node")
    cloud.add_argument("--project", required=True)
    cloud.add_argument("--zone", required=True)
    cloud.add_argument("--accelerator-type", default="v5litepod-16")
    cloud.add_argument("--runtime-version", default="v2-alpha-tpuv5-lite")
    capacity = cloud.add_mutually_exclusive_group()
    capacity.add_argument("--spot", action="store_true", help="cheaper, may be taken away")
    capacity.add_argument("--reserved", action="store_true", help="from the project's reservation")
    capacity.add_argument("--best-effort", action="store_true", help="older form of --spot (alpha)")
    cloud.add_argument("--network", default="")
    cloud.add_argument("--subnetwork", default="")
    cloud.add_argument("--service-account", default="", help="what the hosts act as")
    cloud.add_argument(
        "--internal-ips", action="store_true", help="no external addresses; needs a Cloud NAT"
    )
    cloud.add_argument(
        "--tunnel-through-iap", action="store_true", help="reach the hosts from anywhere (alpha)"
    )
    cloud.add_argument("--slices", type=int, default=1, help="of this type, joined by the network")
    cloud.add_argument("--valid-for", default="", help="how long the request may wait, such as 6h")
    code = parser.add_argument_group("the package")
    code.add_argument("--repository", default="", help="that git on the hosts can read")
    code.add_argument("--revision", default="", help="whole commit")
    code.add_argument("--archive", default="", help="gs://….tar.gz of a checkout, instead of those")
    code.add_argument("--python", default="3.12", help="version that uv installs on the hosts")
    training = parser.add_argument_group("the training; --gin.Class.field=value sets a binding")
    training.add_argument("--gin_file", action="append", default=[], help="may be repeated")
    training.add_argument("--workdir", default="", help="gs:// folder of the run, or one all mount")
    training.add_argument("--env", action="append", default=[], help="NAME=VALUE for the trainer")


def _nothing(_: object) -> None:
    """Replaces `sleep` and `say` in a dry run."""


@contextmanager
def _interruptible() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
