"""hyla-lm sample."""

import argparse
import sys

from hyla_lm.commands.trained_run import add_run

HELP = "continue a prompt with a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument("--prompt", default="-", help="text, or - for standard input (default)")
    parser.add_argument("--max_tokens", type=int, default=64, help="longest continuation")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--top_k", type=int, default=0, help="tokens to choose from; 0 for all")
    parser.add_argument("--top_p", type=float, default=1.0, help="probability mass to choose from")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.running.restored import restore
    from hyla_lm.tasks.sampling import Sampling

    sampling = Sampling(
        options.max_tokens, options.temperature, options.top_k, options.top_p, options.seed
    )
    prompt = sys.stdin.read().rstrip("\n") if options.prompt == "-" else options.prompt
    print(prompt + restore(options, bindings).sample(prompt, sampling))
