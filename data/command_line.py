"""Arguments and gin bindings of the data commands."""

import argparse
import sys
from collections.abc import Sequence

from hyla_lm.config import split_arguments


def parse_with_bindings(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """The parser's options, with unknown arguments as `unknown`, and the --gin. bindings."""
    own, bindings = split_arguments(sys.argv[1:] if arguments is None else arguments)
    options, unknown = parser.parse_known_args(own)
    if unknown and getattr(options, "engine", None) != "beam":
        parser.error(f"{unknown[0]} is unknown")
    options.unknown = unknown
    return options, bindings
