"""hyla-lm completion."""

import argparse

HELP = 'what a shell needs to complete commands: eval "$(hyla-lm completion bash)"'
SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    import shtab

    from hyla_lm.cli.main import whole_parser

    print(shtab.complete(whole_parser(), options.shell))
