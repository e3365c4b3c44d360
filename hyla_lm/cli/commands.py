"""The commands of hyla-lm: a file for each, which imports what it needs when it runs."""

import argparse
from importlib import import_module
from types import ModuleType

from hyla_lm.cli import (
    calibrate,
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
from hyla_lm.cli.command_line import Command, parser_of_commands
from hyla_lm.cli.version import add_version

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
    "calibrate": calibrate,
    "coordcheck": coordcheck,
    "describe": describe,
    "completion": completion,
}
FOLDERS = {
    "data": "rows and tokenizers of text: prepare, verify, tokenizer, sample_corpus",
    "evals": "experiments on small tasks: fuzzy_logic, sraven, …, look, report",
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
