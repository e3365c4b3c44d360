"""hyla-lm sweep."""

import argparse

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.errors import UserError

HELP = "train over lists and grids of settings, some seeds each, and rank them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument(
        "--workdir", required=True, help="folder of the sweep, such as --workdir=runs/sweep"
    )
    parser.add_argument(
        "--over",
        action="extend",
        default=[],
        nargs="+",
        metavar="KEY=A,B",
        help="values of a setting, a macro or gin_file; several are a grid",
    )
    parser.add_argument(
        "--point",
        action="append",
        default=[],
        nargs="+",
        metavar="KEY=A",
        help="all settings of one point; several --point are a list, and --over a grid over it",
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs of each point, seeds 0, 1, …")
    parser.add_argument("--at_once", type=int, default=1, help="runs that train at the same time")
    parser.add_argument(
        "--metric", help="number of summary.json that ranks; by default that of the task"
    )
    parser.add_argument("--best", choices=("lowest", "highest"), help="which value wins")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="say what would be trained, and end")
    modes.add_argument("--summarize", action="store_true", help="rank what there is, train nothing")
    modes.add_argument(
        "--emit_jobs", metavar="FOLDER", help="write a launcher job for each run, train nothing"
    )
    parser.add_argument("--job", metavar="FILE", help="options of the launcher for --emit_jobs")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.signals import signals

    if bool(options.emit_jobs) != bool(options.job):
        raise UserError(
            "--emit_jobs and --job belong together: give the folder to write to and the file of "
            "launcher options that all jobs share."
        )
    with signals():
        if options.emit_jobs:
            return _emit(options, bindings)
        from hyla_lm.tools.sweep import command

        return command.run(options, bindings)


def _emit(options: argparse.Namespace, bindings: list[str]) -> int:
    """Writes the jobs and prints the commands that start them."""
    from hyla_lm.tools.sweep.command import planned
    from hyla_lm.tools.sweep.jobs import write_jobs
    from hyla_lm.tpu import launch

    lines = launch.expand([f"@{options.job}"])
    job = launch.read_job(["supervise", *lines])
    files = [*job.training.gin_files, *options.gin_file]
    runs = planned(options, files, [*job.training.bindings, *bindings])
    commands = write_jobs(
        runs,
        lines,
        job.name,
        options.emit_jobs,
        lambda own: launch.read_job(["supervise", *own]).check_run(),
    )
    print("\n".join(commands))
    return 0
