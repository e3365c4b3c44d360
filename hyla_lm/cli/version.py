"""hyla-lm --version."""

import argparse

from hyla_lm import revision


def add_version(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --version, which asks git for the commit only where it is given."""
    doc = "show the version, in a clone with its commit, and exit"
    parser.add_argument("--version", action=_Version, nargs=0, help=doc)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(parser.prog, revision.described())
        parser.exit()
