"""The command line: hyla-lm COMMAND, hyla-lm data|evals|tpu COMMAND."""

import sys
from collections.abc import Sequence

from hyla_lm import ending
from hyla_lm.cli import command_line, commands


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if argv and argv[0] in commands.FOLDERS:
        return commands.folder(argv[0]).main(argv[1:])
    return command_line.run(commands.parser(), argv)


def entry_point() -> None:
    """Runs this process as the command; `hyla_lm.__main__` is the console script."""
    ending.process(main)
