"""hyla-lm sample."""

import argparse
import itertools
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from hyla_lm.cli import text_input
from hyla_lm.cli.parser import add_run, restore
from hyla_lm.errors import UserError

if TYPE_CHECKING:
    from hyla_lm.run.restored import RestoredRun
    from hyla_lm.tasks.sampling import Sampling

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
    parser.add_argument(
        "--interactive", action="store_true", help="continue each line that is typed"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a continuation")
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
    _check(options)
    prompts = [] if options.interactive else _prompts(options)
    opened = restore(options, bindings)
    with _ends_like_a_filter():
        if options.interactive:
            _answer_lines(opened, sampling)
        elif options.json or len(prompts) * options.samples > 1:
            _print_all(opened, prompts, sampling, options)
        else:
            _print_stream(opened, prompts[0], sampling)


def _check(options: argparse.Namespace) -> None:
    if options.samples < 1:
        raise UserError(f"--samples={options.samples} must be at least 1: change that flag.")
    given = {
        "--prompt": options.prompt,
        "--prompts_file": options.prompts_file,
        "--samples": options.samples > 1,
        "--json": options.json,
    }
    for flag, is_given in given.items():
        if options.interactive and is_given:
            raise UserError(f"--interactive continues one typed line at a time: leave out {flag}.")
    if options.prompt.count("-") > 1:
        raise UserError("--prompt=- is given twice, but standard input can be read once.")


def _prompts(options: argparse.Namespace) -> list[str]:
    given = options.prompt or ([] if options.prompts_file else ["-"])
    prompts = [_prompt(text) for text in given]
    if options.prompts_file:
        lines = text_input.content("--prompts_file", options.prompts_file).split("\n")
        prompts += [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
    if not prompts:
        raise UserError(f"--prompts_file={options.prompts_file} is empty: give a prompt a line.")
    return prompts


def _prompt(text: str) -> str:
    if text == "-":
        return text_input.content("--prompt", text).rstrip("\n")
    return text_input.argument("--prompt", text)


def _answer_lines(opened: "RestoredRun", sampling: "Sampling") -> None:
    """Continues each line of standard input, until it ends."""
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() the keys of a line editor
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    for number in itertools.count():
        try:
            line = input("> " if at_terminal else "")
        except EOFError:
            break
        except UnicodeDecodeError as error:
            raise UserError("standard input is not UTF-8: type text in that encoding.") from error
        _print_stream(opened, text_input.argument("standard input", line), sampling, number)
    if at_terminal:
        print()


def _print_stream(
    opened: "RestoredRun", prompt: str, sampling: "Sampling", number: int = 0
) -> None:
    for piece in itertools.chain([prompt], opened.stream(prompt, sampling, number)):
        print(piece, end="", flush=True)
    print()


def _print_all(
    opened: "RestoredRun", prompts: list[str], sampling: "Sampling", options: argparse.Namespace
) -> None:
    count = len(prompts) * options.samples
    for number, sample in enumerate(opened.sampler.samples(prompts, sampling, options.samples), 1):
        if options.json:
            print(json.dumps(asdict(sample)), flush=True)
        else:
            print(f"--- {number} of {count} ---\n{sample.prompt}{sample.text}", flush=True)


@contextmanager
def _ends_like_a_filter() -> Iterator[None]:
    """Ctrl-C ends the line that is being printed, and a closed pipe the process."""
    before = (
        (signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler)),
        (signal.SIGPIPE, signal.signal(signal.SIGPIPE, signal.SIG_DFL)),
    )
    try:
        yield
    except KeyboardInterrupt:
        print(flush=True)
        raise
    finally:
        for number, answer in before:
            signal.signal(number, answer)
