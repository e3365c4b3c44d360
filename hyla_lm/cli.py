"""The command line: train, evaluate, sample, inspect, plan, describe."""

import argparse
import json
import sys
from collections.abc import Sequence

from hyla_lm import config, ending
from hyla_lm.config import split_arguments
from hyla_lm.signals import signals


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them."""
    own, bindings = split_arguments(list(sys.argv[1:] if arguments is None else arguments))
    options = _parser().parse_args(own)
    return ending.run("hyla-lm", lambda: options.run(options, bindings), options.debug)


def entry_point() -> None:
    """The console script."""
    ending.process(main)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "hyla-lm", description=__doc__, epilog="--gin.Class.field=value sets a binding."
    )
    commands = parser.add_subparsers(
        required=True, metavar="train|evaluate|sample|inspect|plan|describe"
    )
    train = _command(commands, "train", _train, "train, or go on from the newest checkpoint")
    train.add_argument("--workdir", required=True, help="folder of the run")
    train.add_argument(
        "--step", type=int, help="go on from this checkpoint; later ones are set aside"
    )
    train.add_argument(
        "--strict_numerics",
        action="store_true",
        help="refuse to go on with other versions, devices, flags or compiled step",
    )
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
    inspect = _command(commands, "inspect", _inspect, "what a checkpoint holds, and if it is whole")
    inspect.add_argument("workdir", help="folder of a run with checkpoints")
    inspect.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    inspect.add_argument(
        "--against", help="folder of another run, to compare with; 1 if it differs"
    )
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
    command.add_argument(ending.DEBUG, action="store_true", help="show every line of a failure")
    command.set_defaults(run=run)
    return command


def _train(options: argparse.Namespace, bindings: list[str]) -> None:
    with signals():
        from hyla_lm.experiment import read_experiment
        from hyla_lm.parallel import multihost
        from hyla_lm.trainer import Start, train

        start = Start(options.step, options.strict_numerics)
        with multihost.joined(options.workdir):
            train(read_experiment(options.gin_file, bindings), options.workdir, start)


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


def _inspect(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.running.inspect_run import run

    return run(options.workdir, options.step, options.against)


def _plan(options: argparse.Namespace, bindings: list[str]) -> int:
    from hyla_lm.plan.command import run

    return run(options, bindings)


def _describe(options: argparse.Namespace, bindings: list[str]) -> None:
    import hyla_lm.experiment  # noqa: F401  makes the classes known to gin
    from hyla_lm import gin_files

    gin_files.check(options.gin_file, bindings)
    print(config.describe())
