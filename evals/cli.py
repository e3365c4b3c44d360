"""Experiments on the evaluation tasks: those of the paper, and ours."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from hyla_lm.cli import parser as parsers
from hyla_lm.cli.parser import Parser
from hyla_lm.evals.experiments.benchmarks import BENCHMARKS
from hyla_lm.evals.interventions import command as interventions
from hyla_lm.evals.latent_codes import command as latent_codes
from hyla_lm.evals.latent_codes.command import count
from hyla_lm.signals import signals

REPORT = "write the report of a folder's results again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    whole = parser()
    whole.set_defaults(command=shlex.join(["hyla-lm", "evals", *argv]))
    return parsers.run(whole, argv)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands on experiments."""
    parser = Parser("hyla-lm evals", description=__doc__)
    others = ("latent_codes", "interventions", "report")
    commands = parser.add_subparsers(required=True, metavar="|".join([*BENCHMARKS, *others]))
    for suite, benchmark in BENCHMARKS.items():
        command = commands.add_parser(
            suite,
            help=f"train the rows of an experiment on {suite} and report them",
            epilog=parsers.EPILOG,
        )
        command.set_defaults(run=_train, suite=suite)
        add = command.add_argument
        add("--workdir", required=True, help="folder of the runs, results and report")
        known, presets = list(benchmark.experiments), list(benchmark.presets)
        add("--experiment", choices=known, default=known[0], help="see evals/README.md")
        add("--preset", choices=presets, default=presets[0], help="its gin file")
        add("--variants", type=_names, default=(), help="rows, such as softmax,hyla; all")
        add("--seeds", type=_seeds, default=(0, 1, 2), help="such as 0,1,2 (default)")
        add("--grid", action="store_true", help="train all points of the grid and choose by row")
        add("--steps", type=count, help="a shortened schedule; default: the whole one")
        add("--split", help="covering, published or published_new_jax; default: the preset's")
        add("--runs_at_once", type=count, help="trained together; default: 3, 24 on a GPU")
    for name, module in (("latent_codes", latent_codes), ("interventions", interventions)):
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        command.set_defaults(run=module.run)
        module.add_arguments(command)
    report = commands.add_parser("report", help=REPORT, description=REPORT)
    report.set_defaults(run=_report)
    report.add_argument("folder", type=Path, help="folder that has results/")
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(int(number) if number.isdecimal() else -1 for number in text.split(","))
    if -1 in seeds or len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{text} must be different numbers such as 0,1,2")
    return seeds


def _train(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.evals.experiments.report import write_report
    from hyla_lm.evals.experiments.runner import Request, train

    if options.split:
        bindings.append(f'{BENCHMARKS[options.suite].task}.split = "{options.split}"')
    request = Request(
        options.suite,
        options.workdir,
        options.experiment,
        options.preset,
        options.variants,
        options.seeds,
        options.grid,
        options.steps,
        tuple(bindings),
        options.command,
    )
    workdir = Path(options.workdir)
    with signals():
        train(request, options.runs_at_once)
        write_report(workdir)
    print(f"{workdir / 'report.md'}; curves: tensorboard --logdir {workdir}")


def _report(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.evals.experiments.report import write_report

    write_report(options.folder)
    print(options.folder / "report.md")
