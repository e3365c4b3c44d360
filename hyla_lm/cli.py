"""Trains, evaluates and looks at language models whose attention is a hypernetwork."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from hyla_lm import command_line, ending
from hyla_lm.command_line import Command
from hyla_lm.commands import completion, describe, evaluate, inspect, plan, sample, train

COMMANDS: dict[str, Command] = {
    "train": train,
    "evaluate": evaluate,
    "sample": sample,
    "inspect": inspect,
    "plan": plan,
    "describe": describe,
    "completion": completion,
}
FOLDERS = {
    "data": "rows and tokenizers of text: prepare, verify, tokenizer, sample_corpus",
    "evals": "the paper's experiments: fuzzy_logic, sraven, latent_codes, report",
    "tpu": "launch on Cloud TPU: create, run, supervise, delete and more",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv and argv[0] in FOLDERS:
        return folder(argv[0]).main(argv[1:])
    folders = {name: argparse.ArgumentParser(description=text) for name, text in FOLDERS.items()}
    return command_line.run(_parser(folders), argv)


def entry_point() -> None:
    """The console script."""
    ending.process(main)


def folder(name: str) -> ModuleType:
    """The commands of a folder beside hyla_lm: its `main(arguments)` and `parser()`."""
    return import_module(f"hyla_lm.{name}.__main__")


def whole_parser() -> argparse.ArgumentParser:
    """One parser of all commands, those of the folders too, for completion and reference."""
    return _parser({name: folder(name).parser() for name in FOLDERS})


def _parser(folders: dict[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    return command_line.parser_of_commands("hyla-lm", __doc__, COMMANDS, folders)
