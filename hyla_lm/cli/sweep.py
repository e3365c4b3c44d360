"""hyla-lm sweep: lists, trains, ranks, or hands to the launcher the runs of a grid."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.ending import DONE, FAILED, Preempted
from hyla_lm.errors import UserError
from hyla_lm.signals import Signals, signals

if TYPE_CHECKING:
    from hyla_lm.tools.sweep.results import Metric, Summary
    from hyla_lm.tools.sweep.runs import Run

HELP = "train over lists and grids of settings, some seeds each, and rank them"
PICTURE = "summary.png"
SECONDS_TO_END = 15  # for the processes of runs, beyond their own time to save


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
    """Lists, summarizes, emits jobs or trains; returns the status."""
    if bool(options.emit_jobs) != bool(options.job):
        raise UserError(
            "--emit_jobs and --job belong together: give the folder to write to and the file of "
            "launcher options that all jobs share."
        )
    if options.at_once < 1:
        raise UserError(f"--at_once={options.at_once} must be at least 1.")
    with signals() as received:
        if options.emit_jobs:
            return _emit(options, bindings)
        from hyla_lm.tools.sweep.record import Record, locked
        from hyla_lm.tools.sweep.report import listing
        from hyla_lm.tools.sweep.results import metric_of, summarize

        runs = _planned(options, options.gin_file, bindings)
        if options.list:
            _show("\n".join(listing(runs)))
            return DONE
        metric = metric_of(runs, options.metric, options.best)
        if options.summarize:
            failures = Record(options.workdir, runs).failures
            _report(options.workdir, summarize(metric, runs, failures))
            return DONE
        with locked(options.workdir):
            return _train(options, runs, metric, received)


def _planned(
    options: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> "list[Run]":
    from hyla_lm.tools.sweep.points import grid
    from hyla_lm.tools.sweep.runs import plan

    points = grid(options.over, options.point)
    return plan(options.workdir, gin_files, bindings, options.seeds, points)


def _emit(options: argparse.Namespace, bindings: list[str]) -> int:
    """Writes the jobs and prints the commands that start them."""
    from hyla_lm.tools.sweep.jobs import write_jobs
    from hyla_lm.tpu import launch

    lines = launch.expand([f"@{options.job}"])
    job = launch.read_job(["supervise", *lines])
    files = [*job.training.gin_files, *options.gin_file]
    runs = _planned(options, files, [*job.training.bindings, *bindings])
    print("\n".join(write_jobs(runs, lines, job.name, options.emit_jobs)))
    return DONE


def _train(
    options: argparse.Namespace, runs: "Sequence[Run]", metric: "Metric", received: Signals
) -> int:
    from hyla_lm.tools.sweep.record import Record
    from hyla_lm.tools.sweep.results import summarize
    from hyla_lm.tools.sweep.runner import TRAIN, Processes, train_runs

    record = Record(options.workdir, runs)
    # Whether finished runs have the metric shows before others train.
    summarize(metric, runs, record.failures)
    record.write()
    seconds = max(run.experiment.checkpoint.stop_seconds for run in runs) + SECONDS_TO_END
    processes = Processes(TRAIN, options.workdir, _show)
    received.guard(seconds, processes.stop)
    try:
        train_runs(runs, metric, record, processes, options.at_once, _show)
    finally:
        received.unguard()
    summary = summarize(metric, runs, record.failures)
    _report(options.workdir, summary)
    return status_of(summary)


def status_of(summary: "Summary") -> int:
    """The status of a sweep whose runs ended; raises Preempted where some are left to train."""
    left = summary.planned - summary.finished - summary.failed
    if left:
        raise Preempted(f"stopped with {left} of {summary.planned} runs left to train")
    return FAILED if summary.failed else DONE


def _report(workdir: str, summary: "Summary") -> None:
    """Writes summary.json, summary.md and the picture; prints the same in short."""
    from hyla_lm.storage import as_path, write_whole
    from hyla_lm.tools.output import plain
    from hyla_lm.tools.sweep import report

    folder, picture = as_path(workdir), b""
    if summary.best is not None:
        try:
            picture = report.draw(summary)
        except UserError as error:
            _show(f"no picture: {error}")
    if picture:
        write_whole(folder / PICTURE, picture)
    page = report.markdown(summary, PICTURE if picture else "")
    write_whole(folder / "summary.md", page.encode())
    write_whole(folder / "summary.json", report.as_json(summary).encode())
    _show("\n".join(["", *plain(report.table(summary)), "", *report.sentences(summary)]))
    _show(f"in full: {folder}/summary.md; curves: tensorboard --logdir {workdir}")


def _show(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece, for threads print too
