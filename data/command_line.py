"""Arguments and gin bindings of the data commands."""

import argparse
import sys
from collections.abc import Sequence

GIN_PREFIX = "--gin."


def parse_with_bindings(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """The parser's options, with what it does not know as `unknown`, and --gin. bindings."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    bindings = [a[len(GIN_PREFIX) :] for a in argv if a.startswith(GIN_PREFIX)]
    options, unknown = parser.parse_known_args([a for a in argv if not a.startswith(GIN_PREFIX)])
    if unknown and getattr(options, "engine", None) != "beam":
        parser.error(f"{unknown[0]} is unknown")
    options.unknown = unknown
    return options, bindings
