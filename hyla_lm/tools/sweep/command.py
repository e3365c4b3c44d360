"""hyla-lm sweep: plans the runs, trains those that are not finished, tells what was found."""

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing

from hyla_lm.ending import DONE, FAILED, Preempted
from hyla_lm.errors import UserError
from hyla_lm.signals import signals
from hyla_lm.storage import as_path, write_retrying
from hyla_lm.tools.sweep.listing import listing
from hyla_lm.tools.sweep.metric import Metric, metric_of
from hyla_lm.tools.sweep.points import grid
from hyla_lm.tools.sweep.record import Record, locked
from hyla_lm.tools.sweep.report import as_json, markdown, plain, sentences, table
from hyla_lm.tools.sweep.runner import TRAIN, Children, Ended, train_all
from hyla_lm.tools.sweep.runs import Base, Run, plan
from hyla_lm.tools.sweep.summary import Summary, result_of, summarize

PICTURE = "summary.png"
SECONDS_TO_END = 15  # for the processes of runs, beyond their own time to save


def run(options: argparse.Namespace, bindings: Sequence[str]) -> int:
    """Lists, summarizes or trains; returns the status."""
    runs = planned(options, options.gin_file, bindings)
    if options.at_once < 1:
        raise UserError(f"--at_once={options.at_once} must be at least 1.")
    if options.list:
        _say("\n".join(listing(runs)))
        return DONE
    metric = metric_of(runs, options.metric, options.best)
    if options.summarize:
        record = _opened(options.workdir, runs)
        _tell(options.workdir, summary_of(runs, metric, record))
        return DONE
    with locked(options.workdir):
        return _train(options.workdir, runs, metric, options.at_once)


def planned(
    options: argparse.Namespace, gin_files: Sequence[str], bindings: Sequence[str]
) -> list[Run]:
    """The checked runs that options ask for."""
    base = Base(options.workdir, tuple(gin_files), tuple(bindings), options.seeds)
    return plan(base, grid(options.over, options.point))


def _train(workdir: str, runs: Sequence[Run], metric: Metric, at_once: int) -> int:
    record = _opened(workdir, runs)
    summary_of(runs, metric, record)  # a metric that finished runs have not is told before others
    record.write()
    seconds = max(run.experiment.checkpoint.stop_seconds for run in runs) + SECONDS_TO_END
    children = Children(TRAIN, workdir, _say)
    with signals() as asked:
        asked.guard(seconds, children.stop)
        try:
            train_runs(runs, metric, record, children.train, children.stop, at_once, _say)
        finally:
            asked.unguard()
    summary = summary_of(runs, metric, record)
    _tell(workdir, summary)
    return status_of(summary)


def train_runs(
    runs: Sequence[Run],
    metric: Metric,
    record: Record,
    train: Callable[[Run], Ended | None],
    stop: Callable[[], None],
    at_once: int,
    say: Callable[[str], None],
) -> None:
    """Trains the runs that are not finished, and notes and says how each ends."""
    to_do = [run for run in runs if not run.summary()]
    say(f"{len(runs)} runs, {len(runs) - len(to_do)} of them finished")
    with closing(train_all(to_do, train, stop, at_once)) as all_ended:
        for run, ended in all_ended:
            record.ended(run.name, "" if ended.is_finished or ended.is_stopped else ended.reason)
            say(f"{run.name}: {_told(run, metric, ended)}")


def summary_of(runs: Sequence[Run], metric: Metric, record: Record) -> Summary:
    return summarize(metric, [result_of(run, metric, record.failures) for run in runs])


def status_of(summary: Summary) -> int:
    """The status of a sweep whose runs ended; raises Preempted where some are left to train."""
    left = summary.planned - summary.finished - len(summary.failures)
    if left:
        raise Preempted(f"stopped with {left} of {summary.planned} runs left to train")
    return FAILED if summary.failures else DONE


def _opened(workdir: str, runs: Sequence[Run]) -> Record:
    """The record of the folder; raises UserError for the folder of another sweep."""
    record = Record(workdir, runs)
    for run in runs:
        run.check_unchanged()
    return record


def _told(run: Run, metric: Metric, ended: Ended) -> str:
    if ended.is_finished:
        return f"finished, {metric.name} {metric.of(run.summary()):.4f}"
    return "stopped" if ended.is_stopped else f"failed: {ended.said or ended.reason}"


def _tell(workdir: str, summary: Summary) -> None:
    """Writes summary.json, summary.md and the picture; prints the same in short."""
    folder = as_path(workdir)
    picture = _picture(summary)
    if picture:
        write_retrying(folder / PICTURE, picture)
    page = markdown(summary, PICTURE if picture else "")
    write_retrying(folder / "summary.md", page.encode())
    write_retrying(folder / "summary.json", as_json(summary).encode())
    _say("\n".join(["", *plain(table(summary)), "", *sentences(summary)]))
    _say(f"in full: {folder}/summary.md; curves: tensorboard --logdir {workdir}")


def _picture(summary: Summary) -> bytes:
    """A PNG; empty, with a line that says why, where there is nothing to draw or to draw with."""
    if summary.best is None:
        return b""
    try:
        from hyla_lm.tools.sweep.figure import draw
    except UserError as error:
        _say(f"no picture: {error}")
        return b""
    return draw(summary)


def _say(line: str) -> None:
    print(f"{line}\n", end="", flush=True)  # in one piece, for threads say it too
