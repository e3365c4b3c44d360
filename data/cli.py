"""Makes and checks rows and tokenizers of text."""

import argparse
from collections.abc import Sequence
from types import ModuleType

from hyla_lm.cli import parser as parsers
from hyla_lm.data import prepare, train_tokenizer, verify

COMMANDS: dict[str, ModuleType] = {
    "prepare": prepare,
    "verify": verify,
    "tokenizer": train_tokenizer,
}


def parser() -> argparse.ArgumentParser:
    """The parser of all commands on data."""
    return parsers.parser_of_commands("hyla-lm data", __doc__, COMMANDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status."""
    return parsers.run(parser(), arguments)
