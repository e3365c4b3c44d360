"""hyla-lm completion."""

import argparse

from hyla_lm.config import UserError

HELP = 'what a shell needs to complete commands: eval "$(hyla-lm completion bash)"'
SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.cli import whole_parser

    try:
        import shtab
    except ImportError:
        raise UserError(
            "completion needs the package shtab: pip install 'shtab>=1.7', and try again."
        ) from None
    print(shtab.complete(whole_parser(), options.shell))
