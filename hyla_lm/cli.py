"""The command line: train, evaluate, sample, plan, describe."""

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from hyla_lm import config
from hyla_lm.config import UserError, split_arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status.

    A mistake of the user prints one sentence to stderr and returns 2. The same command goes on
    after 75, training was asked to stop and has saved, and after 69, a store does not answer or
    another process of the run is gone.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("hyla_lm").setLevel(logging.INFO)
    argv = list(sys.argv[1:] if arguments is None else arguments)
    own, bindings = split_arguments(argv)
    options = _parser().parse_args(own)
    try:
        status = options.run(options, bindings)
    except UserError as error:
        print(f"hyla-lm: {error}", file=sys.stderr)
        return config.exit_status(error)
    return status or 0


def entry_point() -> None:
    """The console script."""
    sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hyla-lm", description=__doc__, epilog="--gin.Class.field=value sets a binding."
    )
    commands = parser.add_subparsers(required=True, metavar="train|evaluate|sample|plan|describe")
    train = _command(commands, "train", _train, "train, or go on from the newest checkpoint")
    train.add_argument("--workdir", required=True, help="folder of the run")
    evaluate = _command(commands, "evaluate", _evaluate, "validation metrics of a checkpoint")
    sample = _command(commands, "sample", _sample, "continue a prompt with a checkpoint")
    for command in (evaluate, sample):
        command.add_argument("--workdir", required=True, help="folder of a run with checkpoints")
        command.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
        command.add_argument(
            "--trust_imports",
            action="store_true",
            help="let config.gin of the run import modules that are not of this project",
        )
    sample.add_argument("--prompt", default="-", help="text, or - for standard input (default)")
    sample.add_argument("--max_tokens", type=int, default=64, help="longest continuation")
    sample.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    sample.add_argument("--top_k", type=int, default=0, help="tokens to choose from; 0 for all")
    sample.add_argument("--top_p", type=float, default=1.0, help="probability mass to choose from")
    sample.add_argument("--seed", type=int, default=0, help="of the random choices")
    plan = _command(commands, "plan", _plan, "memory, speed and cost on a TPU slice, without one")
    plan.add_argument("--topology", required=True, help="slice, such as v5e:4x4")
    plan.add_argument("--json", action="store_true", help="print one JSON object instead")
    plan.add_argument("--price_per_chip_hour", type=float, help="adds the cost of the run")
    plan.add_argument("--cache_dir", help="keep the compiled step here, for the pod's JAX")
    plan.add_argument(
        "--compiles", type=int, default=6, help="most compiles to find the largest batch (0: none)"
    )
    _command(commands, "describe", _describe, "every bindable field with type, default and doc")
    return parser


def _command(commands, name: str, run, text: str) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--gin_file", action="append", default=[], help="several go in any order")
    command.set_defaults(run=run)
    return command


def _train(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.experiment import read_experiment
    from hyla_lm.parallel import multihost
    from hyla_lm.parallel.preemption import EXIT_STATUS, Preempted
    from hyla_lm.trainer import train

    with multihost.joined(options.workdir):
        experiment = read_experiment(options.gin_file, bindings)
        try:
            train(experiment, options.workdir)
        except Preempted as stop:
            print(f"hyla-lm: {stop}; the same command goes on", file=sys.stderr)
            return EXIT_STATUS
    return 0


def _evaluate(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.parallel import multihost
    from hyla_lm.running.restored import restore

    with multihost.joined(options.workdir):
        metrics = restore(options, bindings).evaluate()
        if multihost.is_lead():
            print(json.dumps(metrics, indent=1))


def _sample(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.running.restored import restore
    from hyla_lm.tasks.sampling import Sampling

    sampling = Sampling(
        options.max_tokens, options.temperature, options.top_k, options.top_p, options.seed
    )
    prompt = sys.stdin.read().rstrip("\n") if options.prompt == "-" else options.prompt
    print(prompt + restore(options, bindings).sample(prompt, sampling))


def _plan(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.plan.command import run

    return run(options, bindings)


def _describe(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm import gin_files

    gin_files.check(options.gin_file, bindings)
    print(config.describe())
