"""Command lines: one parser for commands with options and gin bindings, one way to end."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from hyla_lm import ending
from hyla_lm.cli.arguments import Parser, parse

EPILOG = "--gin.Class.field=value sets a binding."


class Command(Protocol):
    """What a module offers that is a command; `run` returns a status, or None for 0."""

    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...

    def run(self, options: argparse.Namespace, bindings: list[str], /) -> int | None: ...


def parser_of_commands(
    name: str,
    doc: str | None,
    commands: Mapping[str, Command],
    groups: Mapping[str, argparse.ArgumentParser] = MappingProxyType({}),
) -> argparse.ArgumentParser:
    """A parser whose first argument names one of the commands, or a group with its own parser."""
    parser: argparse.ArgumentParser = Parser(name, description=doc, epilog=EPILOG)
    choices = parser.add_subparsers(required=True, metavar="|".join([*commands, *groups]))
    for title, command in commands.items():
        _set_up(choices.add_parser(title, help=command.HELP, description=command.HELP), command)
    for title, group in groups.items():
        choices.add_parser(title, help=group.description)
        choices.choices[title] = group
    return parser


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen command, by default of the process's arguments; returns its status."""
    options, bindings = parse(parser, sys.argv[1:] if arguments is None else arguments)
    return ending.run(parser.prog, lambda: options.run(options, bindings), options.debug)


def run_one(name: str, command: Command, arguments: Sequence[str] | None = None) -> int:
    """Runs a command that has a command line of its own."""
    parser: argparse.ArgumentParser = Parser(name, description=command.HELP, epilog=EPILOG)
    _set_up(parser, command)
    return run(parser, arguments)


def add_gin_files(parser: argparse.ArgumentParser, doc: str = "several go in any order") -> None:
    """Adds --gin_file, which may be repeated."""
    parser.add_argument("--gin_file", action="append", default=[], help=doc)


def _set_up(parser: argparse.ArgumentParser, command: Command) -> None:
    command.add_arguments(parser)
    parser.add_argument(ending.DEBUG, action="store_true", help="show every line of a failure")
    parser.set_defaults(run=command.run)
