"""Texts that commands are given: arguments, files, standard input."""

import sys
from pathlib import Path

from hyla_lm.errors import UserError


def argument(flag: str, text: str) -> str:
    """The text of an argument; raises UserError if it is not UTF-8."""
    from hyla_lm.storage import text_of

    return text_of(text.encode(errors="surrogateescape"), flag)


def content(flag: str, path: str) -> str:
    """The text of a file, or of standard input for -; raises UserError if it cannot be read."""
    try:
        read = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"{flag}={path} cannot be read ({error.strerror}): correct it.") from error
    name = "standard input" if path == "-" else f"{flag}={path}"
    return argument(name, read.decode(errors="surrogateescape"))
