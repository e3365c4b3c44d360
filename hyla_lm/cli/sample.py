"""Example: hyla-lm sample --workdir=runs/mine --prompt='Once upon a time'"""

import argparse
import json
from dataclasses import asdict

from hyla_lm.cli import text_input
from hyla_lm.cli.parser import add_run, load_model
from hyla_lm.errors import UserError

HELP = "continue prompts with a checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    parser.add_argument(
        "--prompt",
        action="append",
        default=[],
        help="text, or - for standard input (default); may be repeated",
    )
    parser.add_argument("--prompts_file", help="file with a prompt on each line")
    parser.add_argument("--samples", type=int, default=1, help="continuations of each prompt")
    parser.add_argument("--json", action="store_true", help="print a JSON object for each")
    parser.add_argument("--max_tokens", type=int, default=64, help="longest continuation")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 takes the likeliest")
    parser.add_argument("--top_k", type=int, default=0, help="tokens to choose from; 0 for all")
    parser.add_argument("--top_p", type=float, default=1.0, help="probability mass to choose from")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.tasks.sampling import Sampling

    sampling = Sampling(
        options.max_tokens, options.temperature, options.top_k, options.top_p, options.seed
    )
    if not 1 <= options.samples <= 10**6:
        raise UserError(f"--samples={options.samples} must be at least 1 and at most a million.")
    prompts = _prompts(options)
    sampler = load_model(options, bindings).sampler
    count = len(prompts) * options.samples
    for number, sample in enumerate(sampler.samples(prompts, sampling, options.samples), 1):
        if options.json:
            print(json.dumps(asdict(sample)), flush=True)
            continue
        if count > 1:
            print(f"--- {number} of {count} ---")
        print(f"{sample.prompt}{sample.text}", flush=True)


def _prompts(options: argparse.Namespace) -> list[str]:
    given = options.prompt or ([] if options.prompts_file else ["-"])
    if given.count("-") > 1:
        raise UserError("--prompt=- is given twice, but standard input can be read once.")
    prompts = [_prompt(text) for text in given]
    if options.prompts_file:
        lines = text_input.content("--prompts_file", options.prompts_file).split("\n")
        prompts += lines if lines[-1] else lines[:-1]
    if not prompts:
        raise UserError(f"--prompts_file={options.prompts_file} is empty: give a prompt per line.")
    return prompts


def _prompt(text: str) -> str:
    if text == "-":
        return text_input.content("--prompt", text).rstrip("\n")
    return text_input.argument("--prompt", text)
