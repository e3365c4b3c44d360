"""The command line: hyla-lm COMMAND, hyla-lm data|evals|tpu COMMAND.

A file for each command, which imports what it needs when it runs.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from hyla_lm import ending, package
from hyla_lm.cli import (
    compare,
    completion,
    coordcheck,
    describe,
    evaluate,
    export,
    inspect,
    plan,
    sample,
    score,
    sweep,
    train,
)
from hyla_lm.cli.parser import Command, parser_of_commands, run

DOC = "Trains, evaluates and looks at language models whose attention is a hypernetwork."
COMMANDS: dict[str, Command] = {
    "train": train,
    "sweep": sweep,
    "evaluate": evaluate,
    "sample": sample,
    "score": score,
    "export": export,
    "inspect": inspect,
    "compare": compare,
    "plan": plan,
    "coordcheck": coordcheck,
    "describe": describe,
    "completion": completion,
}
FOLDERS = {
    "data": "rows and tokenizers of text: prepare, verify, tokenizer",
    "evals": "experiments on small tasks: fuzzy_logic, sraven, …, latent_codes, report",
    "tpu": "launch on Cloud TPU: create, run, supervise, delete and more",
}


def folder(name: str) -> ModuleType:
    """The commands of a folder beside hyla_lm: its `main(arguments)` and `parser()`."""
    return import_module(f"hyla_lm.{name}.cli")


def parser() -> argparse.ArgumentParser:
    """The parser of hyla-lm, which knows the names of the folders alone."""
    folders = {name: argparse.ArgumentParser(description=text) for name, text in FOLDERS.items()}
    return add_version(parser_of_commands("hyla-lm", DOC, COMMANDS, folders))


def whole_parser() -> argparse.ArgumentParser:
    """One parser of all commands, those of the folders too, for completion and reference."""
    folders = {name: folder(name).parser() for name in FOLDERS}
    return add_version(parser_of_commands("hyla-lm", DOC, COMMANDS, folders))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv and argv[0] in FOLDERS:
        return folder(argv[0]).main(argv[1:])
    return run(parser(), argv)


def entry_point() -> None:
    """Runs this process as the command; `hyla_lm.__main__` is the console script."""
    ending.process(main)


def add_version(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --version, which asks git for the commit only where it is given."""
    doc = "show the version, in a clone with its commit, and exit"
    parser.add_argument("--version", action=_Version, nargs=0, help=doc)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(parser.prog, package.described())
        parser.exit()
