"""Command lines: one parser for commands with options and gin bindings, one way to end.

A mistake on the command line is one sentence, with what may have been meant.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from hyla_lm import ending
from hyla_lm.config.declare import split_arguments
from hyla_lm.errors import did_you_mean, printable

if TYPE_CHECKING:
    from hyla_lm.export.loaded_model import LoadedModel

STATEMENT = re.compile(r"(import|from|include)\s")  # a binding that is no assignment
REQUIRED = "the following arguments are required: "
BINDING = re.compile(r"-{0,2}(?:gin)?[._ =]?([\w./]+\.\w+\s*=.*)", re.S)
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


def add_gin_files(parser: argparse.ArgumentParser, doc: str = "several go in any order") -> None:
    """Adds --gin_file, which may be repeated."""
    parser.add_argument("--gin_file", action="append", default=[], help=doc)


def _set_up(parser: argparse.ArgumentParser, command: Command) -> None:
    command.add_arguments(parser)
    parser.add_argument(ending.DEBUG, action="store_true", help="show every line of a failure")
    parser.set_defaults(run=command.run)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds what `load_model` reads."""
    add_gin_files(parser)
    parser.add_argument(
        "--workdir",
        required=True,
        help="folder of a run with checkpoints, such as --workdir=runs/mine",
    )
    parser.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    parser.add_argument(
        "--trust_imports",
        action="store_true",
        help="let config.gin of the run import modules that are not of this project",
    )


def load_model(options: argparse.Namespace, bindings: list[str]) -> "LoadedModel":
    """The language model of --workdir, by its own config.gin or by the given gin files."""
    from hyla_lm.export.load import load

    return load(options.workdir, options.step, options.trust_imports, options.gin_file, bindings)


class Parser(argparse.ArgumentParser):
    """A parser whose errors have one line; its commands get the same kind of parser."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False
        self._given: list[str] = []

    def error(self, message: str) -> NoReturn:
        if message.startswith(REQUIRED):
            message = self._missing(message.removeprefix(REQUIRED).split(", ")[0])
        self.exit(2, f"{self.prog}: {printable(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._given = list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = did_you_mean(str(value), choices) or f"; give one of {', '.join(choices)}"
        is_command = isinstance(action, argparse._SubParsersAction)
        title = "there is no command" if is_command else f"{_name(action)} cannot be"
        raise argparse.ArgumentError(None, f"{title} {value!r}{meant}")

    def _missing(self, name: str) -> str:
        flags = [argument for argument in self._given if argument.startswith("--")]
        strange = [f for f in flags if f.partition("=")[0] not in self._option_string_actions]
        if strange:
            return self._unknown(self._given[self._given.index(strange[0]) :])
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and action.metavar == name:
                return f"a command is missing: give one of {', '.join(action.choices)}"
            if _name(action) == name and action.help:
                return f"{name} is missing: {action.help}"
        return f"{name} is missing: give it"

    def _unknown(self, unknown: Sequence[str]) -> str:
        first = unknown[0]
        name, _, value = first.partition("=")
        joined = " ".join(unknown[:2]) if name == "--gin" and not value else first
        match = BINDING.fullmatch(joined)
        if match:
            return f"{joined} is not understood: write --gin.{match[1]}"
        if not first.startswith("-") and first.endswith(".gin"):
            return f"{first} is not understood: write --gin_file={first}"
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        return f"{first} is unknown" + did_you_mean("--" + name.lstrip("-"), flags)


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options and the gin bindings of a command line."""
    own, bindings = split_arguments(argv)
    for binding in bindings:
        if "=" not in binding and not STATEMENT.match(binding):
            parser.error(f"--gin.{binding} has no value: write --gin.{binding}=VALUE")
    return parser.parse_args(own), bindings


def _name(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)
