"""Example: hyla-lm sweep --gin_file=gin/quickstart.gin --workdir=runs/sweep --seeds=3"""

import argparse

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.ending import DONE, FAILED, Preempted
from hyla_lm.signals import signals

HELP = "train over grids of settings, some seeds each, and rank them"
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
    parser.add_argument("--seeds", type=int, default=1, help="runs of each point, seeds 0, 1, …")
    parser.add_argument(
        "--metric", help="number of summary.json that ranks; by default that of the task"
    )
    parser.add_argument("--best", choices=("lowest", "highest"), help="which value wins")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", action="store_true", help="say what would be trained, and end")
    modes.add_argument("--summarize", action="store_true", help="rank what there is, train nothing")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Lists, ranks or trains; returns the status. Raises Preempted with runs left to train."""
    with signals() as received:
        from hyla_lm.storage import as_path, write_whole
        from hyla_lm.tools.sweep import results, runner
        from hyla_lm.tools.sweep.runs import grid, plan

        points = grid(options.over)
        runs = plan(options.workdir, options.gin_file, bindings, options.seeds, points)
        metric = results.metric_of(runs, options.metric, options.best)
        standings = results.rank(metric, runs, {})  # a run without the metric shows before training
        if options.list:
            _show("\n".join([*(run.workdir for run in runs), f"{len(runs)} runs"]))
            return DONE
        if not options.summarize:
            with runner.locked(options.workdir):
                seconds = max(run.experiment.checkpoint.stop_seconds for run in runs)
                trainer = runner.Trainer(runner.TRAIN, options.workdir, _show)
                received.guard(seconds + SECONDS_TO_END, trainer.stop)
                try:
                    failures = trainer.train_all(runs, metric)
                finally:
                    received.unguard()
                standings = results.rank(metric, runs, failures)
        ranking = results.as_json(metric, standings)
        write_whole(as_path(options.workdir) / "sweep.json", ranking.encode())
        _show(f"\n{results.text(metric, standings)}")
    finished = sum(len(one.values) for one in standings)
    failed = sum(len(one.failures) for one in standings)
    left = len(runs) - finished - failed
    if left and not options.summarize:
        raise Preempted(f"stopped with {left} of {len(runs)} runs left to train")
    return FAILED if failed and not options.summarize else DONE


def _show(line: str) -> None:
    print(line, flush=True)
