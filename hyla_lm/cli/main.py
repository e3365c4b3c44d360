"""The command line: hyla-lm COMMAND, hyla-lm data|evals|tpu COMMAND.

A file for each command, which imports what it needs when it runs.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from hyla_lm import __version__
from hyla_lm.cli import (
    compare,
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
from hyla_lm.cli.parser import parser_of_commands, run

DOC = "Trains, evaluates and looks at language models whose attention is a hypernetwork."
COMMANDS: dict[str, ModuleType] = {
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
}
FOLDERS = {
    "data": "rows and tokenizers of text: prepare, verify, tokenizer",
    "evals": "experiments on small tasks: fuzzy_logic, sraven, …, latent_codes, report",
    "tpu": "launch on Cloud TPU: supervise, status, logs, delete",
}


def folder(name: str) -> ModuleType:
    """The commands of a folder beside hyla_lm: its `main(arguments)` and `parser()`."""
    return import_module(f"hyla_lm.{name}.cli")


def parser(is_whole: bool = False) -> argparse.ArgumentParser:
    """The parser of hyla-lm; of the folders it knows only the names, or all if it `is_whole`."""
    folders = {
        name: folder(name).parser() if is_whole else argparse.ArgumentParser(description=text)
        for name, text in FOLDERS.items()
    }
    found = parser_of_commands("hyla-lm", DOC, COMMANDS, folders)
    found.add_argument("--version", action="version", version=f"hyla-lm {__version__}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv and argv[0] in FOLDERS:
        return folder(argv[0]).main(argv[1:])
    return run(parser(), argv)
