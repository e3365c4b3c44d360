"""The parser of all command lines: a mistake is one sentence, with what may have been meant."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from hyla_lm.config.declare import STATEMENT, split_arguments
from hyla_lm.errors import did_you_mean, printable

REQUIRED = "the following arguments are required: "
BINDING = re.compile(r"-{0,2}(?:gin)?[._ =]?([\w./]+\.\w+\s*=.*)", re.S)


class Parser(argparse.ArgumentParser):
    """A parser whose errors have one line; its commands get the same kind of parser.

    A flag that it does not know is an error, unless the options are for Beam, which has flags.
    """

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
        if unknown and getattr(found, "engine", None) != "beam":
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
    """The options, with flags for others as `unknown`, and the gin bindings of a command line."""
    own, bindings = split_arguments(argv)
    for binding in bindings:
        if "=" not in binding and not STATEMENT.match(binding):
            parser.error(f"--gin.{binding} has no value: write --gin.{binding}=VALUE")
    options, unknown = parser.parse_known_args(own)
    options.unknown = unknown
    return options, bindings


def _name(action: argparse.Action) -> str:
    return "/".join(action.option_strings) or str(action.metavar or action.dest)
