"""Command lines: one parser for commands with options and gin bindings, one way to end.

A mistake on the command line is one sentence, with what may have been meant.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from hyla_lm import ending
from hyla_lm.errors import nearest, printable

if TYPE_CHECKING:
    from hyla_lm.export.loaded_model import LoadedModel

PREFIX = "--gin."
STATEMENT = re.compile(r"(import|from|include)\s")  # a binding that is no assignment
BINDING = re.compile(r"-{0,2}(?:gin)?[._ =]?([\w./]+\.\w+\s*=.*)", re.S)
EPILOG = "--gin.Class.field=value changes a setting; COMMAND --help shows options and an example."


def parser_of_commands(
    name: str,
    doc: str | None,
    commands: Mapping[str, ModuleType],
    groups: Mapping[str, argparse.ArgumentParser] = MappingProxyType({}),
) -> argparse.ArgumentParser:
    """A parser whose first argument names one of the commands, or a group with its own parser.

    A command is a module whose docstring is an example, with HELP, `add_arguments(parser)` and
    `run(options, bindings)`, which returns a status, or None for 0.
    """
    parser: argparse.ArgumentParser = Parser(name, description=doc, epilog=EPILOG)
    choices = parser.add_subparsers(required=True, metavar="COMMAND")
    for title, command in commands.items():
        doc = command.__doc__
        own = choices.add_parser(title, help=command.HELP, description=command.HELP, epilog=doc)
        command.add_arguments(own)
        own.set_defaults(run=command.run)
    for title, group in groups.items():
        choices.add_parser(title, help=group.description)
        choices.choices[title] = group
    return parser


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen command, by default of the process's arguments; returns its status."""
    options, bindings = parse(parser, sys.argv[1:] if arguments is None else arguments)
    for name in ("workdir", "output"):  # the current folder otherwise
        if getattr(options, name, None) == "":
            parser.error(f"{name} is empty: give a folder")
    return ending.run(parser.prog, lambda: options.run(options, bindings))


def add_gin_files(to: argparse._ActionsContainer, doc: str = "may be repeated") -> None:
    """Adds --gin_file, which may be repeated."""
    to.add_argument("--gin_file", action="append", default=[], help=doc)


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds what `load_model` reads."""
    group = parser.add_argument_group("the run")
    group.add_argument(
        "--workdir",
        required=True,
        help="folder of a run with checkpoints, such as --workdir=runs/mine",
    )
    group.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    add_gin_files(group)
    group.add_argument(
        "--trust_imports",
        action="store_true",
        help="let config.gin of the run import modules that are not of this project",
    )


def load_model(options: argparse.Namespace, bindings: list[str]) -> "LoadedModel":
    """The language model of --workdir, by its own config.gin or by the given gin files."""
    from hyla_lm.export.load import load

    return load(options.workdir, options.step, options.trust_imports, options.gin_file, bindings)


class WithDefaults(argparse.HelpFormatter):
    """Help that ends with the default, where there is one and the text does not say it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        doc, default = action.help or "", action.default
        is_shown = default and default is not argparse.SUPPRESS and "default" not in doc
        return f"{doc} (default: %(default)s)" if is_shown else doc


class Parser(argparse.ArgumentParser):
    """A parser whose errors have one line; its commands get the same kind of parser."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.formatter_class, self.allow_abbrev = WithDefaults, False

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, unknown

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
        if not first.startswith("-"):
            return f"{first!r} belongs to no option: put a value that has spaces in quotes"
        word = name.lstrip("-")
        flag = nearest("--" + word, flags)
        if "--gin_file" in flags and (setting := _setting(word, is_exact=bool(flag))):
            given = value or next(iter(unknown[1:]), "VALUE")
            return f"{first} is unknown: write {PREFIX}{setting}={given}"
        return f"{first} is unknown" + (f"; did you mean {flag}?" if flag else "")


def _setting(word: str, is_exact: bool) -> str:
    """The setting of a run with this name, or if not `is_exact` one like it; empty for none."""
    from hyla_lm.config import read_experiment  # noqa: F401  makes the settings known
    from hyla_lm.config.gin_files import setting_like

    field = word.replace("-", "_")
    like = setting_like(field)
    return "" if is_exact and not like.endswith(f".{field}") else like


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The options and the gin bindings of a command line."""
    bindings = [one.removeprefix(PREFIX) for one in argv if one.startswith(PREFIX)]
    for binding in bindings:
        if "=" not in binding and not STATEMENT.match(binding):
            parser.error(f"--gin.{binding} has no value: write --gin.{binding}=VALUE")
    options = parser.parse_args([one for one in argv if not one.startswith(PREFIX)])
    return options, bindings
